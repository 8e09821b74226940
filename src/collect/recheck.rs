//! `Phase::Recheck`: finding the objects that finalizers have made reachable again.

use crate::base::event::{self, During, Phase};
use crate::collect::claim::{Exempt, Reclaimers};
use crate::collect::finalize::Pending;
use crate::collect::scope::{claimed, state_of};
use crate::collect::search::Search;
use crate::collect::traversal::Abandoned;
use crate::heap::model::{Found, ObjectModel, Verdict};
use crate::heap::mutator::ModelMutator;
use crate::heap::mutator::World;
use crate::object::live::{ClaimRef, Live};
use crate::object::state;

/// Objects to be cleared: nothing outside the set reaches them, and all weak references to them are
/// cleared.
#[must_use]
#[derive(Default)]
pub(crate) struct Garbage {
    pub(crate) objects: Vec<ClaimRef>,
    pub(crate) reclaimers: Reclaimers,
    /// Claimed objects that are reachable again or no longer tracked. Only the claim's reference is
    /// dropped. There are several lists because joining them would allocate.
    pub(crate) spared: [Vec<ClaimRef>; 4],
    pub(crate) resurrected: usize,
    /// The number of objects that are uncollectable without an attempt to clear them. `judge` moves
    /// them to `spared`.
    pub(crate) kept: usize,
    exempt: Exempt,
}

impl Garbage {
    fn none(reclaimers: Reclaimers, exempt: Exempt) -> Self {
        Self { reclaimers, exempt, ..Self::default() }
    }
}

impl Pending {
    /// No user code ran, so all unreachable objects are garbage.
    pub(crate) fn untouched(self) -> Garbage {
        debug_assert!(!self.needs_recheck);
        Garbage { objects: self.objects, ..Garbage::none(self.reclaimers, self.exempt) }
    }
}

/// The phase `Recheck`, on at most `most` threads. Objects that are reachable from outside the set
/// again leave it, and so do the objects that they reach. The other objects lose their remaining
/// weak references.
///
/// If a traversal fails, the whole set is kept.
pub(crate) fn recheck<M: ObjectModel>(
    world: &World<'_, M>,
    mut pending: Pending,
    most: usize,
) -> (Garbage, Option<Abandoned>) {
    let _phase = event::phase(Phase::Recheck);
    let core = world.core();
    let mut garbage = Garbage::none(pending.reclaimers, pending.exempt);
    let (spared, abandoned) = match take_reachable(world, &mut pending.objects, most) {
        Ok(spared) => (spared, None),
        Err(abandoned) => (std::mem::take(&mut pending.objects), Some(abandoned)),
    };
    for claim in &pending.objects {
        core.model.clear_weak(claimed(world, claim));
    }
    for claim in &spared {
        let state = state_of(&core.space, claim.object());
        state.survive();
        garbage.resurrected += usize::from(state.get() & state::TRACKED != 0);
    }
    garbage.objects = pending.objects;
    garbage.spared[0] = spared;
    (garbage, abandoned)
}

/// Moves the objects out that are reachable from outside the set or no longer tracked.
fn take_reachable<M: ObjectModel>(
    world: &World<'_, M>,
    objects: &mut Vec<ClaimRef>,
    most: usize,
) -> Result<Vec<ClaimRef>, Abandoned> {
    let mut search = Search::among(world, objects, most)?;
    let marked = search.mark_reachable();
    let taken = marked.and_then(|()| Ok(search.take_marked(objects)?));
    search.close(taken)
}

/// Keeps the whole set, because the world cannot be stopped for the recheck.
pub(crate) fn keep_all<M: ObjectModel>(pending: Pending, m: &ModelMutator<M>) -> Garbage {
    for claim in &pending.objects {
        state_of(&m.core().space, claim.object()).survive();
    }
    let resurrected = pending.objects.len();
    let mut garbage = Garbage { resurrected, ..Garbage::none(pending.reclaimers, pending.exempt) };
    garbage.spared[0] = pending.objects;
    garbage
}

/// Between the phases `Recheck` and `Clear`, with the world running: passes the garbage to the
/// model, which may keep it.
pub(crate) fn judge<M: ObjectModel>(mut garbage: Garbage, m: &ModelMutator<M>) -> Garbage {
    let exempt = std::mem::take(&mut garbage.exempt);
    // SAFETY: rule *counted*: these objects are among those that `exempt` holds.
    let legacy = unsafe { Live::slice(&exempt.legacy) };
    let [objects, uncollectable] =
        [&garbage.objects, &exempt.objects].map(|l| ClaimRef::live_slice(l));
    let found = Found::new(objects, uncollectable, legacy);
    let mut verdict = Verdict::Clear;
    if !found.garbage.is_empty() || !found.uncollectable.is_empty() {
        let _lent = m.lend();
        match event::guarded(|| m.model().judge(&found, m)) {
            Ok(decided) => verdict = decided,
            Err(payload) => {
                // After a failure everything is kept.
                verdict = Verdict::Keep;
                m.core().hooks.unraisable(During::Clear, "", event::panic_message(payload));
            }
        }
    }
    garbage.kept = exempt.objects.len();
    garbage.spared[1] = exempt.objects;
    garbage.spared[2] = exempt.spared;
    if verdict == Verdict::Keep {
        for claim in &garbage.objects {
            // An object that was untracked meanwhile also counts as kept.
            garbage.kept += usize::from(state_of(&m.core().space, claim.object()).survive());
        }
        garbage.spared[3] = std::mem::take(&mut garbage.objects);
    }
    garbage
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::collect::Collect;
    use crate::collect::claim::tests::{heap, things};
    use crate::collect::collection::collect_due;
    use crate::collect::script::tests::collect;
    use crate::collect::script::tests::{Script, are_ordinary, scripted_heap};
    use crate::object::state::UNREACHABLE;
    use crate::object::type_info::Object;

    /// Also with objects that legacy finalizers keep alive.
    #[test]
    fn spared_objects_keep_their_references_for_any_verdict() {
        let heap = heap();
        let m = heap.attach();
        let things = things(&m);
        let claims = |things: &[Object]| -> Vec<ClaimRef> {
            // SAFETY: rule *counted*: the test's references stand for the claim's.
            things.iter().map(|&thing| unsafe { ClaimRef::new(thing) }).collect()
        };
        heap.model().keep_all();
        let exempt = Exempt {
            objects: claims(&things[..1]),
            legacy: vec![things[0]],
            spared: claims(&things[1..3]),
        };
        let garbage = judge(Garbage::none(Reclaimers::default(), exempt), &m);
        let [spared, exempt, doubted, kept] = garbage.spared;
        assert_eq!((spared, kept), (vec![], vec![]));
        assert_eq!((exempt, doubted), (claims(&things[..1]), claims(&things[1..3])));
        assert_eq!((garbage.kept, garbage.objects), (1, vec![]));
    }

    #[test]
    fn garbage_that_the_model_keeps_is_ordinary_again_and_counts_as_uncollectable() {
        for (by_the_heap, panics) in [(false, false), (true, false), (false, true)] {
            let Some(heap) = scripted_heap() else { return };
            let mut m = heap.attach();
            let garbage = Script::ring(&m, &[('a', ""), ('b', "")]);
            if panics {
                heap.model().when("judge [ab] [] []", |_| panic!("a verdict, on purpose"));
            } else {
                heap.model().state().keeps = true;
            }
            let calls = if by_the_heap {
                collect_due(&mut m, Collect::full()).expect("a turn");
                heap.model().calls()
            } else {
                collect(&mut m, Collect::full()).1
            };
            let mut expected = vec!["judge [ab] [] []"];
            if panics {
                expected.push("failure: Clear '': a verdict, on purpose");
            }
            expected.extend(["release a", "release b", "clearing 0", "all cleared", "after_clear"]);
            expected.push(
                "stop: 1 stops, 2 unreachable, 0 finalized, 0 resurrected, 0 collected, 2 uncollectable",
            );
            assert_eq!(calls[calls.len() - expected.len()..], expected);
            are_ordinary(&m, &garbage, 1);
        }
    }

    #[test]
    fn resurrected_objects_are_released_and_the_rest_is_cleared() {
        for by_the_heap in [false, true] {
            let Some(heap) = scripted_heap() else { return };
            let mut m = heap.attach();
            let ring = Script::ring(&m, &[('a', "f"), ('b', "w")]);
            Script::ring(&m, &[('x', "w")]);
            // The finalizer drops a's reference to c, and untracks u, which refers to v.
            let [c, u, v] = ['c', 'u', 'v'].map(|name| Script::thing(&m, name, "", "s"));
            for (from, to) in [(ring[0], c), (c, c), (u, u), (u, v), (v, v)] {
                Script::link(&m, from, to);
            }
            [c, u, v].iter().for_each(|&object| heap.model().drop_ref(object, &m));
            let a = ring[0];
            heap.model().when("finalize a", move |m| {
                Script::of(m, a, |thing| {
                    thing.count += 1;
                    thing.edges.retain(|&edge| edge != c);
                });
                m.model().drop_ref(c, m);
                assert!(Script::untrack(m, u));
            });
            let calls = if by_the_heap {
                collect_due(&mut m, Collect::full()).expect("a turn");
                heap.model().calls()
            } else {
                collect(&mut m, Collect::full()).1
            };
            let end = "stop: 2 stops, 6 unreachable, 1 finalized, 3 resurrected, 2 collected, 0 uncollectable";
            assert_eq!(calls.last().map(String::as_str), Some(end));
            let cleared: Vec<&String> =
                calls.iter().filter(|what| what.starts_with("clear_weak")).collect();
            assert_eq!(cleared, ["clear_weak x", "clear_weak c"]);
            are_ordinary(&m, &ring[1..], 1);
            are_ordinary(&m, &ring[..1], 2);
            assert_eq!((m.model().count_of(u), m.model().count_of(v)), (1, 2));
            assert_eq!(m.core().state_at(u).get() & UNREACHABLE, 0);
        }
    }

    /// The unreadable field may still hold the references that counting found in the first stop.
    #[test]
    fn a_field_that_is_locked_after_finalizers_have_run_keeps_what_it_led_to() {
        let Some(heap) = scripted_heap() else { return };
        let mut m = heap.attach();
        let ring = Script::ring(&m, &[('b', "f"), ('c', "")]);
        let hides = Script::thing(&m, 'h', "", "sh");
        for (from, to) in [(hides, hides), (hides, ring[0])] {
            Script::link(&m, from, to);
        }
        heap.model().drop_ref(hides, &m);
        let (report, calls) = collect(&mut m, Collect::full());
        let end = "stop: 2 stops, 3 unreachable, 1 finalized, 3 resurrected, 0 collected, 0 uncollectable";
        assert_eq!((calls.last().map(String::as_str), report.abandoned), (Some(end), None));
        are_ordinary(&m, &ring[1..], 1);
    }
}
