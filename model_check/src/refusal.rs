//! A heap whose memory runs out: an allocation that is refused changes nothing.

#![forbid(unsafe_code)]

use standstill::kit::LIVE;
use standstill::kit::parts::*;

use crate::bench::{Bench, builder};
use crate::broken::{CheckReport, Checked, Rule, finding};
use crate::run::{Failure, give_up, on_a_thread};
use crate::specimen::{ObjectSpec, Specimen};

/// The limit of the heap, in bytes: two pages.
const LIMIT: usize = 2 << 16;
/// Refused allocations.
const REFUSALS: usize = 20;

/// Fills a small heap, and is refused several times. Then everything is dropped.
pub(crate) fn refuse<M: Specimen>(seed: u64) -> Result<CheckReport, Box<Failure>> {
    on_a_thread(|| {
        let mut bench = Bench::<M>::with_builder(builder(seed).limit(LIMIT))
            .map_err(|finding| Failure::new(finding, None, vec!["make a heap".to_owned()]))?;
        bench.log.push("make objects until the heap's memory runs out, and more".to_owned());
        match fill(&mut bench) {
            Ok(()) => {
                // No quarantine holds what was freed: so many frees are few.
                bench.log.push("drop all of them".to_owned());
                if let Err(finding) = empty(&mut bench) {
                    return Err(give_up(bench, finding));
                }
                let report = bench.finish();
                report.map_err(|finding| Failure::new(finding, None, Vec::new()))
            }
            Err(finding) => Err(give_up(bench, finding)),
        }
    })
}

fn fill<M: Specimen>(bench: &mut Bench<M>) -> Checked<()> {
    let method = "Specimen::alloc";
    let spec = ObjectSpec { fields: M::FIELDS, ..ObjectSpec::default() };
    let returned = bench.call("refused", None, |model, m| ThreadsOf::<M>::refused(model, m))?;
    if returned {
        let text = "it returned true, and has returned no memory to the heap: none is in use";
        return finding(Rule::Refusal, "refused", None, text);
    }
    let mut refused = 0;
    while refused < REFUSALS {
        let before = bench.heap.stats().live_objects;
        match bench.attempt(method, None, |_, m| M::alloc(m, spec))? {
            Ok(Ok(object)) => {
                bench.add(object, spec)?;
            }
            Ok(Err(_)) => {
                refused += 1;
                let after = bench.heap.stats().live_objects;
                if after != before {
                    let text = format!(
                        "it failed for lack of memory, and the number of objects changed from \
                         {before} to {after}"
                    );
                    return finding(Rule::Refusal, method, None, text);
                }
            }
            Err(text) => {
                let text = format!("it panicked for lack of memory: {text}");
                return finding(Rule::Refusal, method, None, text);
            }
        }
    }
    Ok(())
}

/// Drops all objects, which refer to nothing.
fn empty<M: Specimen>(bench: &mut Bench<M>) -> Checked<()> {
    for at in 0..bench.shadow.objects.len() {
        let object = bench.shadow.objects[at].object;
        bench.shadow.objects[at].held = 0;
        bench.shadow.remove(at);
        bench.call("Specimen::drop_ref", Some(at), |_, m| M::drop_ref(m, object))?;
        if bench.state(at) & LIVE != 0 && !M::ABILITIES.late {
            let text = "no reference to it is left, and its memory was not freed";
            return finding(Rule::Memory, "Specimen::drop_ref", Some(at), text);
        }
    }
    Ok(())
}
