//! W6: 4096 slots that all threads share: 40 % add an edge, 30 % remove one, 10 % read, 20 %
//! replace a node.

use std::hint::black_box;
use std::sync::Mutex;

use pauses::random::SplitMix;

use crate::peer::Peer;
use crate::tally::Tally;
use crate::task::{Measured, Task, cores, on_threads};

use super::{check_all_freed, drain};

const SLOTS: usize = 4096;

pub(super) fn run<P: Peer>(task: &Task) -> Measured
where
    P::Node: Send + Sync,
{
    let shared = P::shared(task);
    let slots: Vec<Mutex<P::Node>> = {
        let local = P::attach(&shared);
        (0..SLOTS).map(|id| Mutex::new(P::alloc(&local, Tally::new(id as u32)))).collect()
    };
    // A slot's lock is held for the clone or the swap alone; a handle is never dropped under it.
    let pick = |random: &mut SplitMix| slots[random.below(SLOTS)].lock().expect("a slot").clone();
    let wall = on_threads(task, |index| {
        let mut local = P::attach(&shared);
        let mut random = SplitMix::new(100 + index as u64);
        for i in 0..task.n {
            match random.below(10) {
                0..4 => {
                    let (from, to) = (pick(&mut random), pick(&mut random));
                    P::link(&local, &from, &to);
                }
                4..7 => drop(P::unlink(&local, &pick(&mut random))),
                7 => {
                    black_box(P::read(&local, &pick(&mut random)));
                }
                _ => {
                    let node = P::alloc(&local, Tally::new(i as u32));
                    let mut slot = slots[random.below(SLOTS)].lock().expect("a slot");
                    let old = std::mem::replace(&mut *slot, node);
                    drop(slot);
                    drop(old);
                }
            }
            P::safepoint(&mut local);
        }
    });
    let mut measured = Measured::new(wall, (task.n * task.threads) as u64, cores(task.threads));
    let mut local = P::attach(&shared);
    let named: u64 = slots.iter().map(|slot| P::read(&local, &slot.lock().expect("a slot"))).sum();
    black_box(named);
    drop(slots);
    drain::<P>(&mut local);
    check_all_freed::<P>(&mut measured);
    measured
}
