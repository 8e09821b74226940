//! Programs: random ones, and short ones that reach each part of a model in a fixed order.
//!
//! A step names objects by their place among those that the kit holds at that time, so any part of
//! a program is a program. This makes shrinking simple.

#![forbid(unsafe_code)]

use crate::bench::{Bench, METHOD_UPGRADE};
use crate::broken::{Checked, Rule, finding, name_of};
use crate::shadow::WeakState;
use crate::specimen::{Abilities, ObjectSpec, Specimen};

/// Random numbers: splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit.max(1) as u64) as usize
    }
}

/// The behaviour of a finalizer or a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserCode {
    None,
    /// It returns.
    Returns,
    /// A finalizer brings its object back.
    Rises,
    /// It panics.
    Panics,
}

/// A step that uses a part of the seam to a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeamStep {
    /// The object refers to another one, without a count.
    Uncount {
        from: usize,
        to: usize,
    },
    /// The opposite.
    Forget(usize),
    Root(usize),
    /// Objects are roots no more.
    Unroot,
    /// One more reference, counted apart.
    Apart(usize),
    DropApart(usize),
    Serial,
    Untrack(usize),
    /// Tracks all objects again.
    TrackAll,
    /// Whether collections keep their garbage.
    Keep(bool),
    Request,
    /// A collection inside a stop that the runtime makes for a reason of its own.
    OwnStop,
}

/// A step of a program. Numbers choose among what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramStep {
    Alloc { fields: usize, finalizer: UserCode, legacy: bool, immortal: bool },
    Link { from: usize, field: usize, to: usize },
    Unlink { from: usize, field: usize },
    Retain(usize),
    Drop(usize),
    DropLater(usize),
    Downgrade { target: usize, callback: UserCode },
    Upgrade(usize),
    Audit,
    OneByOne(usize),
    ByHeap { young: bool },
    Seam(SeamStep),
}

use ProgramStep::{
    Alloc, Audit, ByHeap, Downgrade, Drop, DropLater, Link, OneByOne, Retain, Seam, Unlink, Upgrade,
};

/// An object with this number of fields.
pub(crate) fn plain(fields: usize) -> ProgramStep {
    Alloc { fields, finalizer: UserCode::None, legacy: false, immortal: false }
}

fn finalized(fields: usize, finalizer: UserCode) -> ProgramStep {
    Alloc { fields, finalizer, legacy: false, immortal: false }
}

pub(crate) const fn link(from: usize, field: usize, to: usize) -> ProgramStep {
    Link { from, field, to }
}

/// Short programs in the order of what they need: a fault in a simple part is found by a program
/// that uses nothing else.
pub(crate) fn exercises(can: Abilities, fields: usize) -> Vec<Vec<ProgramStep>> {
    let heap = ByHeap { young: false };
    let two = fields.min(2);
    let mut all = vec![
        vec![],
        vec![plain(1), Audit, Drop(0)],
        vec![plain(1), Retain(0), Audit, Drop(0), Audit, Drop(0)],
        vec![plain(1), plain(1), link(0, 0, 1), Audit, Unlink { from: 0, field: 0 }, Audit],
        vec![plain(1), plain(1), link(0, 0, 1), Drop(1), Audit, Drop(0)],
        vec![plain(two), plain(1), link(0, 0, 1), link(0, two - 1, 1), Audit, Drop(1), Drop(0)],
        vec![plain(1), plain(1), plain(1), link(0, 0, 1), link(1, 0, 2), Drop(2), Drop(1), Drop(0)],
    ];
    all.extend(one_by_one(can, fields));
    all.push(vec![plain(1), plain(1), link(0, 0, 1), link(0, 0, 1), Audit, link(0, 0, 0), Audit]);
    if can.deferred {
        all.extend([
            vec![plain(1), Retain(0), DropLater(0), Audit, Drop(0)],
            vec![plain(1), DropLater(0), Audit],
            vec![plain(1), plain(1), link(0, 0, 1), Drop(1), DropLater(0), Audit],
            vec![plain(1), plain(1), DropLater(0), DropLater(0), Audit, heap],
        ]);
    }
    if can.immortals {
        let immortal =
            Alloc { fields: 1, finalizer: UserCode::None, legacy: false, immortal: true };
        all.extend([
            vec![immortal, Audit],
            vec![immortal, plain(1), link(0, 0, 1), Drop(1), Audit, heap],
        ]);
    }
    all.extend([
        vec![plain(1), heap, Drop(0), heap],
        vec![plain(1), link(0, 0, 0), Drop(0), heap],
        vec![plain(1), plain(1), link(0, 0, 1), link(1, 0, 0), Drop(1), heap, Drop(0), heap],
        // Garbage that refers to an object that stays.
        vec![
            plain(two),
            plain(1),
            link(0, 0, 0),
            link(0, two - 1, 1),
            Drop(0),
            heap,
            Audit,
            Drop(0),
        ],
        vec![
            plain(1),
            plain(1),
            plain(1),
            link(0, 0, 1),
            link(1, 0, 2),
            link(2, 0, 0),
            Drop(2),
            Drop(1),
            Drop(0),
            heap,
        ],
    ]);
    if can.weak {
        let weak = Downgrade { target: 0, callback: UserCode::None };
        all.extend([
            vec![plain(1), weak, Upgrade(0), Drop(0), Drop(0), Upgrade(0)],
            vec![plain(1), link(0, 0, 0), weak, Drop(0), heap, Upgrade(0)],
            vec![plain(1), weak, heap, Upgrade(0)],
        ]);
    }
    if can.callbacks {
        let weak = |callback| Downgrade { target: 0, callback };
        for code in [UserCode::Returns, UserCode::Panics] {
            all.extend([
                vec![plain(1), weak(code), Drop(0)],
                vec![plain(1), link(0, 0, 0), weak(code), Drop(0), heap],
                vec![
                    plain(1),
                    link(0, 0, 0),
                    weak(code),
                    weak(UserCode::None),
                    weak(code),
                    Drop(0),
                    heap,
                ],
            ]);
        }
    }
    if can.finalizers {
        for code in [UserCode::Returns, UserCode::Rises, UserCode::Panics] {
            all.extend([
                vec![finalized(1, code), heap, Drop(0)],
                vec![finalized(1, code), link(0, 0, 0), Drop(0), heap, heap],
                vec![
                    finalized(1, code),
                    plain(1),
                    link(0, 0, 1),
                    link(1, 0, 0),
                    Drop(1),
                    Drop(0),
                    heap,
                    Drop(0),
                    heap,
                ],
            ]);
        }
    }
    if can.legacy {
        let legacy = Alloc { fields: 1, finalizer: UserCode::None, legacy: true, immortal: false };
        all.push(vec![legacy, plain(1), link(0, 0, 1), link(1, 0, 0), heap, Drop(0)]);
    }
    all
}

/// Programs that call the methods for one object.
fn one_by_one(can: Abilities, fields: usize) -> Vec<Vec<ProgramStep>> {
    let (own, call, two) = (link(0, 0, 0), OneByOne(0), fields.min(2));
    let weak = |callback| Downgrade { target: 0, callback };
    let mut all = vec![
        vec![plain(1), call],
        vec![plain(1), own, call],
        vec![plain(two), plain(1), own, link(0, two - 1, 1), link(1, 0, 0), call],
    ];
    if can.weak {
        all.push(vec![plain(1), own, weak(UserCode::None), call, Upgrade(0)]);
    }
    for code in [UserCode::Returns, UserCode::Panics] {
        if can.callbacks {
            all.push(vec![plain(1), own, weak(code), weak(UserCode::None), weak(code), call]);
        }
    }
    for code in [UserCode::Returns, UserCode::Rises, UserCode::Panics] {
        if can.finalizers {
            all.push(vec![finalized(1, code), own, call]);
        }
    }
    if can.legacy {
        let legacy = Alloc { fields: 1, finalizer: UserCode::None, legacy: true, immortal: false };
        all.push(vec![legacy, call]);
    }
    all
}

/// A random program.
pub(crate) fn random(random: &mut Random, can: Abilities, fields: usize) -> Vec<ProgramStep> {
    let length = 5 + random.below(40);
    (0..length).map(|_| step(random, can, fields)).collect()
}

fn step(random: &mut Random, can: Abilities, fields: usize) -> ProgramStep {
    let mut code = |is_there: bool, n: usize, rises: bool| match random.below(3 * n) {
        _ if !is_there => UserCode::None,
        0 => UserCode::Returns,
        1 if rises => UserCode::Rises,
        1 | 2 => UserCode::Panics,
        _ => UserCode::None,
    };
    let finalizer = code(can.finalizers, 4, true);
    let callback = code(can.callbacks, 2, false);
    let [a, b, c] = [0; 3].map(|_: usize| random.below(usize::MAX));
    match random.below(32) {
        0..8 => Alloc {
            fields: 1 + a % fields,
            finalizer,
            legacy: can.legacy && b % 12 == 0,
            immortal: can.immortals && c % 20 == 0,
        },
        8..17 => Link { from: a, field: b, to: c },
        17..19 => Unlink { from: a, field: b },
        19 => Retain(a),
        20..25 => Drop(a),
        25 => {
            if can.deferred {
                DropLater(a)
            } else {
                Drop(a)
            }
        }
        26 if can.weak => Downgrade { target: a, callback },
        27 if can.weak => Upgrade(a),
        28 => Audit,
        29..31 => ByHeap { young: a % 3 == 0 },
        31 if b % 2 == 0 => OneByOne(a),
        _ => Link { from: a, field: b, to: c },
    }
}

impl<M: Specimen> Bench<M> {
    /// Runs a step, and adds its text to the log. A step that finds nothing to work on does
    /// nothing.
    pub(crate) fn step(&mut self, step: ProgramStep) -> Checked<()> {
        let held = self.shadow.held();
        let pick = |at: usize| held.get(at % held.len().max(1)).copied();
        self.report.steps += 1;
        match step {
            Alloc { fields, finalizer, legacy, immortal } => {
                let spec = ObjectSpec {
                    fields,
                    finalizer: finalizer != UserCode::None,
                    legacy,
                    immortal,
                    serial: false,
                };
                self.alloc_step(spec, finalizer)
            }
            Link { from, field, to } => {
                let (Some(from), Some(to)) = (pick(from), pick(to)) else { return Ok(()) };
                self.set(from, field, Some(to))
            }
            Unlink { from, field } => {
                let Some(from) = pick(from) else { return Ok(()) };
                self.set(from, field, None)
            }
            Retain(at) => {
                let Some(at) = pick(at) else { return Ok(()) };
                self.log.push(format!("one more reference to {}", name_of(at)));
                let object = self.shadow.objects[at].object;
                self.last = "Specimen::retain";
                self.call(self.last, Some(at), |_, m| M::retain(m, object))?;
                self.shadow.objects[at].held += 1;
                self.compare(self.last)
            }
            Drop(at) => {
                let Some(at) = pick(at) else { return Ok(()) };
                if self.shadow.objects[at].spec.immortal {
                    return Ok(());
                }
                self.log.push(format!("drop a reference to {}", name_of(at)));
                self.drop_ref(at)
            }
            DropLater(at) => {
                let Some(at) = pick(at) else { return Ok(()) };
                if self.shadow.objects[at].spec.immortal {
                    return Ok(());
                }
                self.log.push(format!("drop a reference to {} later", name_of(at)));
                let object = self.shadow.objects[at].object;
                self.shadow.objects[at].held -= 1;
                self.shadow.objects[at].later += 1;
                self.last = "Specimen::drop_later";
                self.call_user(self.last, Some(at), |_, m| M::drop_later(m, object))?;
                self.compare(self.last)
            }
            Downgrade { target, callback } => {
                let Some(target) = pick(target) else { return Ok(()) };
                self.downgrade_step(target, callback)
            }
            Upgrade(at) => {
                if self.shadow.weak.is_empty() {
                    return Ok(());
                }
                let at = at % self.shadow.weak.len();
                let name = name_of(self.shadow.weak[at].target);
                self.log.push(format!("upgrade weak reference {at}, to {name}"));
                self.last = METHOD_UPGRADE;
                // Weak references end with the death of their target.
                self.upgrade(at, METHOD_UPGRADE)?;
                Ok(())
            }
            Audit => {
                self.log.push("compare counts and references".to_owned());
                self.audit()
            }
            Seam(step) => self.seam_step(step),
            OneByOne(at) => {
                let Some(at) = pick(at) else { return Ok(()) };
                self.log.push(format!("call the methods for {}, one by one", name_of(at)));
                self.call_one_by_one(at)
            }
            ByHeap { young } => {
                let extent = if young { "young" } else { "full" };
                self.log.push(format!("a {extent} collection of the heap"));
                self.collect_by_heap(young)
            }
        }
    }

    pub(crate) fn alloc_step(&mut self, spec: ObjectSpec, finalizer: UserCode) -> Checked<()> {
        let name = name_of(self.shadow.objects.len());
        let mut text = format!("{name} = an object with {} fields", spec.fields);
        text += match finalizer {
            UserCode::None => "",
            UserCode::Returns => ", with a finalizer",
            UserCode::Rises => ", with a finalizer that brings it back",
            UserCode::Panics => ", with a finalizer that panics",
        };
        text += if spec.legacy { ", with a legacy finalizer" } else { "" };
        text += if spec.immortal { ", immortal" } else { "" };
        text += if spec.serial { ", serial" } else { "" };
        self.log.push(text);
        self.last = "Specimen::alloc";
        let at = self.alloc(spec)?;
        let object = self.shadow.objects[at].object;
        match finalizer {
            UserCode::None | UserCode::Returns => {}
            UserCode::Rises => self.journal.rise(object),
            UserCode::Panics => self.journal.fail(object),
        }
        Ok(())
    }

    fn set(&mut self, from: usize, field: usize, target: Option<usize>) -> Checked<()> {
        let field = field % self.shadow.objects[from].fields.len();
        let name = target.map_or("nothing".to_owned(), name_of);
        self.log.push(format!("{}[{field}] = {name}", name_of(from)));
        let (object, to) = (
            self.shadow.objects[from].object,
            target.map(|target| self.shadow.objects[target].object),
        );
        self.shadow.objects[from].fields[field] = target;
        self.last = "Specimen::set";
        self.call_user(self.last, Some(from), |_, m| M::set(m, object, field, to))?;
        self.compare(self.last)
    }

    fn downgrade_step(&mut self, target: usize, callback: UserCode) -> Checked<()> {
        let text = match callback {
            UserCode::None => "",
            UserCode::Panics => " with a callback that panics",
            _ => " with a callback",
        };
        let number = self.shadow.weak.len();
        self.log.push(format!("weak reference {number} to {}{text}", name_of(target)));
        if callback == UserCode::Panics {
            self.journal.fail_ticket(number as u64);
        }
        self.last = "Specimen::downgrade";
        let made = self.downgrade(target, callback != UserCode::None)?;
        if let Some(at) = made
            && callback == UserCode::None
        {
            // It leads to its target now, at least.
            debug_assert_eq!(self.shadow.weak[at].state, WeakState::Whole);
            return Ok(());
        }
        if made.is_none() && M::ABILITIES.weak && !self.shadow.objects[target].spec.immortal {
            let text = "it made no weak reference, although `ABILITIES` says that it can";
            return finding(Rule::Answers, self.last, Some(target), text);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_programs() {
        let program = |seed| random(&mut Random(seed), Abilities::NONE.finalizers(), 2);
        assert_eq!(program(7), program(7));
        assert_ne!(program(7), program(8));
        assert!((5..45).contains(&program(7).len()));
        let mut random = Random(1);
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert_eq!(random.below(0), 0);
    }
}
