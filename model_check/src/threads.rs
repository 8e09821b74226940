//! Programs on several threads, which run at the same time and exchange references.
//!
//! Each thread writes down the references that it holds, and the fields of the objects that it has
//! made. Only the maker of an object changes its fields, while it holds a reference to the object.
//! Any thread retains and drops any object. In a round the threads run freely, with collections at
//! their safepoints and random yields. At the end of a round all of them wait detached, but the
//! first. It adds up the books of all threads: they are the [shadow](Shadow) of that moment.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
#[cfg(not(standstill_shuttle))]
use std::{sync::Barrier, thread};

// It may be a real lock also under shuttle, because nothing happens while one is held.
use parking_lot::Mutex;
#[cfg(standstill_shuttle)]
use shuttle::{sync::Barrier, thread};
use standstill::kit::parts::*;
use standstill::kit::{self, LIVE};
use standstill::model::{ModelHeap, ModelMutator, Object};
use standstill::{Collect, Stress};

use crate::bench::{QUARANTINE, builder};
use crate::broken::{CheckReport, Checked, Rule, finding, guarded};
use crate::program::Random;
use crate::run::{Failure, on_a_thread};
use crate::shadow::{Shadow, ShadowObject};
use crate::specimen::{Journal, ObjectSpec, Specimen};
use crate::stop_calls::InStop;

/// Steps of a thread in a round.
const STEPS: usize = 60;
/// Rounds of a program.
const ROUNDS: usize = 3;
/// The objects that a thread holds before it makes no more of them, and those that are put down at
/// a time. They are few, so that threads often use the same object at the same time.
const FEW: usize = 4;

/// The references that one thread knows.
#[derive(Default)]
struct Book {
    /// By address: the references that the thread holds.
    held: HashMap<Object, usize>,
    /// Of the objects that the thread has made: their fields. In order, so that of several wrong
    /// objects a seed names the same one again.
    made: BTreeMap<Object, Vec<Option<Object>>>,
}

/// What the threads share.
struct Meeting {
    barrier: Barrier,
    books: Vec<Mutex<Book>>,
    /// References that threads have put down for others.
    exchange: Mutex<Vec<Object>>,
    failure: Mutex<Option<Box<crate::broken::Finding>>>,
}

impl Meeting {
    fn fail(&self, result: Checked<()>) {
        if let Err(finding) = result {
            self.failure.lock().get_or_insert(finding);
        }
    }

    fn has_failed(&self) -> bool {
        self.failure.lock().is_some()
    }
}

/// The program, for reports.
pub(crate) fn text(threads: usize) -> String {
    format!("{threads} threads make, link, exchange and drop objects")
}

/// Runs a program on `threads` threads.
pub(crate) fn run_threads<M: Specimen>(
    threads: usize,
    seed: u64,
) -> Result<CheckReport, Box<Failure>> {
    let log = vec![text(threads)];
    let result = on_a_thread(|| {
        let journal = Arc::new(Journal::default());
        let stress = Stress::none()
            .poison(true)
            .quarantine(QUARANTINE)
            .yield_at_random(seed)
            .collect_at_safepoints(5);
        let heap = builder(seed).stress(stress).build_with(M::specimen(&journal));
        let heap = match heap {
            Ok(heap) => heap,
            Err(error) => {
                return finding(Rule::Refusal, "HeapBuilder::build_with", None, error.to_string());
            }
        };
        let meeting = Meeting {
            barrier: Barrier::new(threads),
            books: (0..threads).map(|_| Mutex::default()).collect(),
            exchange: Mutex::default(),
            failure: Mutex::default(),
        };
        thread::scope(|scope| {
            for at in 0..threads {
                let (heap, meeting) = (&heap, &meeting);
                scope.spawn(move || ThreadProgram { heap, meeting, at }.run(seed));
            }
        });
        let objects = meeting.books.iter().map(|book| book.lock().made.len()).sum();
        let collections = heap.stats().collections;
        let failure = meeting.failure.lock().take();
        match failure {
            Some(found) => {
                // No code of the model runs any more.
                mem::forget(heap);
                Err(found)
            }
            None => {
                let (programs, steps) = (1, threads * ROUNDS * STEPS);
                Ok(CheckReport { programs, steps, objects, collections, ..CheckReport::default() })
            }
        }
    });
    result.map_err(|found| Failure::new(found, None, log))
}

/// One of the threads.
struct ThreadProgram<'a, M: Specimen> {
    heap: &'a ModelHeap<M>,
    meeting: &'a Meeting,
    at: usize,
}

impl<M: Specimen> ThreadProgram<'_, M> {
    fn run(&self, seed: u64) {
        let mut random = Random(seed ^ (self.at as u64 + 1).wrapping_mul(0x5851_f42d_4c95_7f2d));
        let mut m = match guarded(|| self.heap.attach()) {
            Ok(m) => m,
            // Before the first meeting, which counts all threads.
            Err(text) => {
                self.meeting.fail(finding(
                    Rule::Panics,
                    "attached",
                    None,
                    format!("it panicked: {text}"),
                ));
                for _ in 0..2 * (ROUNDS + 1) {
                    self.meeting.barrier.wait();
                }
                return;
            }
        };
        for round in 0..=ROUNDS {
            if !self.meeting.has_failed() {
                // All threads begin with the same objects at the same time.
                let result = guarded(|| {
                    self.drop_all(&mut m)?;
                    match round {
                        ROUNDS => self.drop_exchange(&mut m),
                        _ => self.steps(&mut m, &mut random),
                    }
                });
                self.meeting.fail(result.unwrap_or_else(|text| {
                    let text = format!("a thread panicked: {text}");
                    finding(Rule::Panics, "ModelMutator::safepoint", None, text)
                }));
            }
            m.detach(|| self.meeting.barrier.wait());
            if self.at == 0 && !self.meeting.has_failed() {
                let result = guarded(|| self.compare(&mut m));
                self.meeting.fail(result.unwrap_or_else(|text| {
                    let text = format!("a collection panicked: {text}");
                    finding(Rule::Panics, "ModelMutator::try_collect", None, text)
                }));
            }
            m.detach(|| self.meeting.barrier.wait());
        }
        if self.meeting.has_failed() {
            mem::forget(m);
        }
    }

    /// An error if an object that the thread holds was freed.
    fn is_alive(&self, object: Object) -> Checked<()> {
        if kit::state(self.heap, object) & LIVE != 0 {
            return Ok(());
        }
        let text = "an object was freed by another thread while this thread held a reference to it";
        finding(Rule::Memory, "Specimen::drop_ref", None, text)
    }

    fn pick(&self, random: &mut Random) -> Option<Object> {
        let book = self.meeting.books[self.at].lock();
        let mut held: Vec<Object> = book.held.keys().copied().collect();
        held.sort_unstable();
        (!held.is_empty()).then(|| held[random.below(held.len())])
    }

    /// Adds to the references that this thread holds.
    fn gain(&self, object: Object) {
        *self.meeting.books[self.at].lock().held.entry(object).or_default() += 1;
    }

    /// Removes a reference from those that this thread holds.
    fn lose(&self, object: Object) {
        let mut book = self.meeting.books[self.at].lock();
        if let Some(count) = book.held.get_mut(&object) {
            *count -= 1;
            if *count == 0 {
                book.held.remove(&object);
            }
        }
    }

    fn steps(&self, m: &mut ModelMutator<M>, random: &mut Random) -> Checked<()> {
        for _ in 0..STEPS {
            if self.meeting.has_failed() {
                return Ok(());
            }
            self.one_step(m, random)?;
            m.safepoint();
        }
        Ok(())
    }

    fn one_step(&self, m: &ModelMutator<M>, random: &mut Random) -> Checked<()> {
        let what = random.below(12);
        let is_rich = self.meeting.books[self.at].lock().held.len() >= FEW;
        if what < 3 && !is_rich {
            let spec = ObjectSpec { fields: 1 + random.below(M::FIELDS), ..ObjectSpec::default() };
            let object = match M::alloc(m, spec) {
                Ok(object) => object,
                Err(error) => {
                    return finding(Rule::Refusal, "Specimen::alloc", None, error.to_string());
                }
            };
            self.meeting.books[self.at].lock().made.insert(object, vec![None; spec.fields]);
            self.gain(object);
            return Ok(());
        }
        if what == 3 {
            let taken = self.meeting.exchange.lock().pop();
            if let Some(object) = taken {
                self.is_alive(object)?;
                self.gain(object);
            }
            return Ok(());
        }
        let Some(object) = self.pick(random) else { return Ok(()) };
        self.is_alive(object)?;
        match what {
            4..8 => {
                let Some(target) = self.pick(random) else { return Ok(()) };
                self.is_alive(target)?;
                let mut field = 0;
                {
                    let mut book = self.meeting.books[self.at].lock();
                    let Some(fields) = book.made.get_mut(&object) else { return Ok(()) };
                    field += random.below(fields.len());
                    fields[field] = Some(target);
                }
                M::set(m, object, field, Some(target));
            }
            8 => {
                M::retain(m, object);
                self.gain(object);
            }
            // This thread keeps a reference of its own.
            9 if self.meeting.exchange.lock().len() < FEW => {
                M::retain(m, object);
                self.meeting.exchange.lock().push(object);
            }
            10 if M::ABILITIES.deferred => {
                self.lose(object);
                M::drop_later(m, object);
            }
            _ => {
                self.lose(object);
                M::drop_ref(m, object);
            }
        }
        Ok(())
    }

    /// Drops all references of this thread, in the order of addresses, which is that of other
    /// threads too.
    fn drop_all(&self, m: &mut ModelMutator<M>) -> Checked<()> {
        let held = mem::take(&mut self.meeting.books[self.at].lock().held);
        let mut held: Vec<_> = held.into_iter().collect();
        held.sort_unstable();
        for (object, count) in held {
            for _ in 0..count {
                self.is_alive(object)?;
                M::drop_ref(m, object);
                m.safepoint();
            }
        }
        Ok(())
    }

    /// Drops what is put down. No thread puts anything down in this round.
    fn drop_exchange(&self, m: &mut ModelMutator<M>) -> Checked<()> {
        let left = match self.at {
            0 => mem::take(&mut *self.meeting.exchange.lock()),
            _ => Vec::new(),
        };
        for object in left {
            self.is_alive(object)?;
            M::drop_ref(m, object);
        }
        Ok(())
    }

    /// The books of all threads as one shadow.
    fn add_up(&self) -> Shadow<M::Weak> {
        let mut shadow = Shadow::default();
        let mut at = HashMap::new();
        let mut all_fields = Vec::new();
        for book in &self.meeting.books {
            for (&object, fields) in &book.lock().made {
                at.insert(object, shadow.objects.len());
                all_fields.push(fields.clone());
                shadow.objects.push(ShadowObject {
                    object,
                    spec: ObjectSpec { fields: fields.len(), ..ObjectSpec::default() },
                    type_name: String::new(),
                    fields: Vec::new(),
                    held: 0,
                    later: 0,
                    taken: 0,
                    apart: 0,
                    uncounted: None,
                    rooted: false,
                    untracked: false,
                    alive: true,
                    finalized: false,
                });
            }
        }
        for (object, fields) in shadow.objects.iter_mut().zip(all_fields) {
            object.fields = fields.iter().map(|field| field.map(|target| at[&target])).collect();
        }
        for book in &self.meeting.books {
            for (object, count) in &book.lock().held {
                shadow.objects[at[object]].held += count;
            }
        }
        for object in self.meeting.exchange.lock().iter() {
            shadow.objects[at[object]].held += 1;
        }
        shadow
    }

    /// While the other threads wait: collects, and compares the heap with the books.
    fn compare(&self, m: &mut ModelMutator<M>) -> Checked<()> {
        let method = "ModelMutator::try_collect";
        let mut shadow = self.add_up();
        for at in shadow.held() {
            self.is_alive(shadow.objects[at].object)?;
        }
        for _ in 0..2 {
            if let Err(error) = m.try_collect(Collect::full()) {
                return finding(Rule::NoSafepoint, method, None, error.to_string());
            }
        }
        for at in shadow.garbage() {
            shadow.remove(at);
        }
        for object in &shadow.objects {
            let is_there = kit::state(self.heap, object.object) & LIVE != 0;
            if object.alive && !is_there {
                let text = "an object was freed, although references of some thread lead to it";
                return finding(Rule::Memory, method, None, text);
            }
            if !object.alive && is_there && !M::ABILITIES.late {
                let text = "an object still exists after a full collection, and no reference of \
                            any thread leads to it: a count is too high, or `clear` or `release` \
                            lost it";
                return finding(Rule::Counts, method, None, text);
            }
        }
        let world = match m.stop() {
            Ok(world) => world,
            Err(error) => return finding(Rule::NoSafepoint, method, None, error.to_string()),
        };
        let mut stop = InStop::new(self.heap, &world, &mut shadow, "Specimen::retain");
        let mut dead = Vec::new();
        stop.merge(&mut dead)?;
        stop.compare_counts("count", Rule::Counts)?;
        stop.inspect()?;
        drop(world);
        SplitCountsOf::<M>::resumed(m.model(), m);
        // None: the collections before have merged all counts.
        dead.into_iter()
            .for_each(|object| SplitCountsOf::<M>::destroy_merged(m.model(), object, m));
        Ok(())
    }
}
