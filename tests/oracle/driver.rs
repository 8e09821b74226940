//! A program, run on a heap and on the model, which must agree after every step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use standstill::{Collect, CollectionReport, Gc, Heap, KnownRoot, Mutator, Pacing};

use crate::common::{live_for_ever, panic_text};
use crate::dynamics;
use crate::model::{ANCHORS, Expected, Id, Model, TYPES};
use crate::objects::{Ref, Weak};
use crate::program::{Errand, Kind, PLACES, Program, SEATS, Shape, Step, Variety, WEAKS};
use crate::world::World;

/// Runs a program. Panics where heap and model disagree, and says at which step; the step is
/// printed with the program.
pub(crate) fn run(program: &Program) {
    let heap = build(program.variety);
    let mut m = Some(heap.attach());
    let shift = Shift {
        run: Run::new(&heap, m.as_mut().expect("attached"), program.variety),
        steps: program.steps.clone().into(),
        at: 0,
        seat: 0,
        failure: None,
    };
    let mut shift = Crew::default().work(&heap, &mut m, shift);
    if let Some(failure) = shift.failure.take() {
        // The rest may be too damaged to be dropped. But this thread must be able to attach again.
        std::mem::forget((shift, heap));
        drop(m);
        panic!("{failure}");
    }
    let left = shift.run.finish(&mut m);
    if !left.is_empty() {
        live_for_ever(&heap, left.iter().copied());
    }
    let m = m.as_mut().expect("attached");
    m.collect();
    m.verify().expect("a sound heap");
    assert_eq!(heap.stats().live_objects, left.len(), "how many objects outlive the program");
}

fn build(variety: Variety) -> Heap {
    // Heaps with immortal objects in them are never given back: no more address space than needed.
    let builder = Heap::builder().reserve(64 << 20).pacing(Pacing::manual()).checked(false);
    let builder = match variety {
        Variety::Plain => builder.workers(1),
        Variety::Parallel => builder.workers(3).serial_below(0),
        Variety::Stress => builder.workers(1).stress(true),
        Variety::Checked => builder.workers(1).checked(true),
    };
    builder.build().expect("a heap")
}

// ----------------------------------------------------------------------------------------- threads

/// A program on its way: it goes from thread to thread.
struct Shift {
    run: Run,
    steps: Arc<[Step]>,
    /// The next step.
    at: usize,
    /// The program's number.
    seat: usize,
    failure: Option<String>,
}

impl Shift {
    /// Does the steps of one thread, up to the next that is about threads.
    fn work(&mut self, m: &mut Option<Mutator>) {
        while let Some(&step) = self.steps.get(self.at).filter(|_| self.failure.is_none()) {
            // Others may go on, or end, when this thread has passed a safepoint.
            let leaves = matches!(step, Step::Go(_) | Step::End(_));
            let failure = panic_text(|| {
                self.run.step(m, if leaves { Step::Safepoint } else { step });
                self.run.compare(m.as_mut().expect("attached"));
            });
            self.failure = failure.map(|text| format!("at step {}, {step:?}: {text}", self.at));
            if leaves {
                return;
            }
            self.at += 1;
        }
        if self.failure.is_none() {
            self.failure = panic_text(|| self.run.step(m, Step::Safepoint));
        }
    }
}

/// Another thread.
struct Mate {
    shifts: Sender<Shift>,
    done: Receiver<Shift>,
    thread: JoinHandle<()>,
}

impl Mate {
    fn new(heap: &Heap) -> Self {
        let (shifts, mine) = channel::<Shift>();
        let (answers, done) = channel();
        let heap = heap.clone();
        let thread = std::thread::spawn(move || {
            let mut m = Some(heap.attach());
            let mut finished = None;
            loop {
                // The answer is sent after this thread has detached: the next thread may rely on
                // that.
                let next = m.as_mut().expect("attached").detach(|| {
                    if let Some(shift) = finished.take() {
                        answers.send(shift).expect("the receiver waits");
                    }
                    mine.recv()
                });
                let Ok(mut shift) = next else { return };
                shift.work(&mut m);
                finished = Some(shift);
            }
        });
        Self { shifts, done, thread }
    }

    fn end(self) {
        drop(self.shifts);
        self.thread.join().expect("no panic");
    }
}

/// All threads but the first, which calls the others.
#[derive(Default)]
struct Crew([Option<Mate>; SEATS - 1]);

impl Crew {
    fn work(mut self, heap: &Heap, m: &mut Option<Mutator>, mut shift: Shift) -> Shift {
        while shift.failure.is_none() && shift.at < shift.steps.len() {
            shift = if shift.seat == 0 {
                shift.work(m);
                shift
            } else {
                let mate = self.0[shift.seat - 1].get_or_insert_with(|| Mate::new(heap));
                m.as_mut().expect("attached").detach(|| {
                    mate.shifts.send(shift).expect("it waits");
                    mate.done.recv().expect("it answers")
                })
            };
            match shift.steps.get(shift.at) {
                Some(&Step::Go(seat)) => shift.seat = seat,
                Some(&Step::End(seat)) if seat != 0 && seat != shift.seat => {
                    self.0[seat - 1].take().into_iter().for_each(Mate::end);
                }
                _ => {}
            }
            shift.at += 1;
        }
        if shift.failure.is_none() {
            self.0.into_iter().flatten().for_each(Mate::end);
        }
        shift
    }
}

// ------------------------------------------------------------------------------------ both at once

/// The real thing. The fields are dropped in this order: finalizers need the anchors.
struct Real {
    places: [Option<Ref>; PLACES],
    weaks: [Option<Weak>; WEAKS],
    root: Option<KnownRoot>,
    anchors: Vec<Ref>,
    world: Arc<World>,
}

impl Real {
    /// Puts a handle into a place, and drops the previous one.
    fn put(&mut self, place: usize, gc: Option<Ref>) {
        let old = std::mem::replace(&mut self.places[place], gc);
        self.world.release(old);
    }
}

struct Run {
    variety: Variety,
    real: Real,
    model: Model,
    fulls: usize,
}

impl Run {
    fn new(heap: &Heap, m: &mut Mutator, variety: Variety) -> Self {
        let world = Arc::new(World::default());
        heap.on_unraisable({
            let world = world.clone();
            move |report| {
                world.events.lock().unwrap().panics.push(report.message.clone().into_owned())
            }
        });
        heap.on_misuse({
            let world = world.clone();
            move |fault| world.faults.lock().unwrap().push(fault.to_string())
        });
        heap.services().expect_legacy_finalizers(true);
        let anchors = ANCHORS.map(|id| Ref::alloc(m, &world, id, Shape::List, Kind::Plain));
        for anchor in &anchors {
            let Ref::Plain(anchor) = anchor else { unreachable!("anchors are plain") };
            world.anchors.lock().unwrap().push(Gc::downgrade(anchor, m));
        }
        for (id, finalizer) in TYPES.into_iter().zip([false, true]) {
            let class = dynamics::heap_type(m, finalizer);
            let object = Ref::Dynamic(class.object().expect("a heap type").clone());
            world.names.lock().unwrap().insert(object.address(), id);
            world.types.lock().unwrap().push(class);
        }
        let real = Real {
            places: Default::default(),
            weaks: Default::default(),
            root: None,
            anchors: anchors.into(),
            world,
        };
        Self { variety, real, model: Model::new(), fulls: 0 }
    }

    /// The handles in a place, in both worlds.
    fn at(&self, place: usize) -> Option<(&Ref, Id)> {
        self.real.places[place].as_ref().zip(self.model.places[place])
    }

    fn put(&mut self, place: usize, gc: Option<Ref>, id: Option<Id>) {
        self.real.put(place, gc);
        self.model.put(place, id);
    }

    /// Does a step in both worlds.
    fn step(&mut self, owner: &mut Option<Mutator>, step: Step) {
        let m = owner.as_mut().expect("attached");
        match step {
            Step::Alloc(place, shape, kind) => {
                let (id, kind) = (self.model.name(), shape.fit(kind));
                let gc = Ref::alloc(m, &self.real.world, id, shape, kind);
                self.model.add(id, shape, kind);
                self.put(place, Some(gc), Some(id));
            }
            Step::Link(a, b) => {
                if let (Some((from, from_id)), Some((to, to_id))) = (self.at(a), self.at(b)) {
                    let (from, to) = (from.clone(), to.clone());
                    self.link(m, &from, from_id, to, to_id);
                }
            }
            Step::LinkAnchor(place, at, to_place) => {
                if let Some((gc, id)) = self.at(place) {
                    let (gc, anchor) = (gc.clone(), self.real.anchors[at].clone());
                    if to_place {
                        self.link(m, &anchor, ANCHORS[at], gc, id);
                    } else {
                        self.link(m, &gc, id, anchor, ANCHORS[at]);
                    }
                }
            }
            Step::Unlink(place, k) => {
                if let Some((gc, id)) = self.at(place).filter(|&(_, id)| self.model.is_ordered(id))
                {
                    let old = gc.remove(m, k);
                    self.real.world.release(old);
                    let old = self.model.remove(id, k);
                    self.model.reap(old);
                }
            }
            Step::Clear(place) => {
                if let Some((gc, id)) = self.at(place) {
                    let old = gc.take_all(m);
                    self.real.world.release(old);
                    let old = self.model.take_fields(id);
                    self.model.reap(old);
                }
            }
            Step::ClearAnchor(at) => {
                let old = self.real.anchors[at].take_all(m);
                self.real.world.release(old);
                let old = self.model.take_fields(ANCHORS[at]);
                self.model.reap(old);
            }
            Step::Clone(from, to) => {
                self.put(to, self.real.places[from].clone(), self.model.places[from])
            }
            Step::Drop(place) => self.put(place, None, None),
            Step::Follow(from, k, to) => {
                if let Some((gc, id)) = self.at(from).filter(|&(_, id)| self.model.is_ordered(id)) {
                    let next = gc.fields(m).into_iter().nth(k).flatten();
                    let expected = self.model.alive[&id].fields.get(k).copied().flatten();
                    // A weak reference does not show its callback.
                    if next.is_some() || self.model.alive[&id].shape != Shape::DynWatcher {
                        self.found(m, to, next, expected);
                    }
                }
            }
            Step::Swap(place, k, with) => self.swap(m, place, k, with),
            Step::Exchange(place, k, current, new) => self.exchange(m, place, k, current, new),
            Step::Weak(place, w) => {
                if let Some((gc, id)) = self.at(place)
                    && let Some(weak) = gc.weak(m)
                {
                    self.real.weaks[w] = Some(weak);
                    self.model.weaks[w] = Some((id, true));
                }
            }
            Step::DropWeak(w) => {
                self.real.weaks[w] = None;
                self.model.weaks[w] = None;
            }
            Step::Upgrade(w, place) => {
                if let Some(weak) = &self.real.weaks[w] {
                    let gc = weak.upgrade(m);
                    self.found(m, place, gc, self.model.led_to(w));
                }
            }
            Step::Watch(target, holds, place) => self.watch(m, target, holds, place),
            Step::Look(from, to) => {
                if let Some((gc, id)) = self.at(from)
                    && let Some(gc) = gc.upgrade_any(m)
                {
                    self.found(m, to, gc, self.model.alive[&id].watches);
                }
            }
            Step::Track(place) => {
                if let Some((gc, id)) = self.at(place) {
                    let was = gc.any().track(m);
                    let node = self.model.node(id);
                    assert_eq!(was, !node.tracked);
                    node.track();
                }
            }
            Step::Untrack(place) => {
                if let Some((gc, id)) = self.at(place) {
                    let was = gc.any().untrack(m);
                    let node = self.model.node(id);
                    assert_eq!(was, node.tracked);
                    node.tracked = false;
                }
            }
            Step::Immortalize(place) => {
                if let Some((gc, id)) = self.at(place) {
                    gc.any().immortalize(m);
                    self.model.node(id).immortal = true;
                }
            }
            Step::Freeze => {
                self.safepoint(m);
                m.freeze();
                let nodes = self.model.alive.values_mut();
                nodes.filter(|node| node.tracked).for_each(|node| node.frozen = true);
            }
            Step::Unfreeze => {
                self.safepoint(m);
                m.unfreeze();
                self.model.alive.values_mut().for_each(|node| node.frozen = false);
            }
            Step::TakeShelf(place) => {
                let mut shelf = self.real.world.shelf.lock().unwrap();
                let lowest = (0..shelf.len()).min_by_key(|&at| shelf[at].0);
                let gc = lowest.map(|at| shelf.swap_remove(at).1);
                drop(shelf);
                let id = self.model.shelf.iter().copied().min();
                let at = id.and_then(|id| self.model.shelf.iter().position(|&other| other == id));
                // It goes from the shelf into the place, and is held all the time.
                let held = at.map(|at| self.model.shelf.swap_remove(at));
                self.found(m, place, gc, held);
            }
            Step::ClearShelf => {
                let old = std::mem::take(&mut *self.real.world.shelf.lock().unwrap());
                self.real.world.release(old);
                let old = std::mem::take(&mut self.model.shelf);
                self.model.reap(old);
            }
            Step::TakeGarbage => {
                let old = m.heap().services().garbage_take(m);
                self.real.world.release(old);
                let old = std::mem::take(&mut self.model.list);
                self.model.reap(old);
            }
            Step::Name(place) => {
                if let Some((gc, id)) = self.at(place) {
                    let named = m.heap().known_root(gc.any());
                    let old = self.real.root.replace(named);
                    self.real.world.release(old);
                    let old = self.model.root.replace(id);
                    self.model.reap(old);
                }
            }
            Step::Unname => {
                let old = self.real.root.take();
                self.real.world.release(old);
                let old = self.model.root.take();
                self.model.reap(old);
            }
            Step::Safepoint => self.safepoint(m),
            Step::Young => {
                let report = m.collect_young();
                self.collected(false, &report);
            }
            Step::Full => {
                // A search in a child leaves immortal objects in the set. Each clone takes time.
                self.fulls += 1;
                let is_forked = self.fulls % 4 == 1
                    && self.model.alive.values().all(|node| !node.immortal || !node.tracked);
                let report = m.try_collect(Collect::full().forked(is_forked)).unwrap();
                self.collected(true, &report);
            }
            Step::DropDetached(place) => {
                let gc = self.real.places[place].take();
                m.detach(|| drop(gc));
                self.model.put(place, None);
                self.safepoint(m);
            }
            Step::CloneDetached(from, to) => {
                let gc = m.detach(|| self.real.places[from].clone());
                self.put(to, gc, self.model.places[from]);
                self.safepoint(m);
            }
            Step::Reattach(place) => {
                let heap = m.heap().clone();
                *owner = None;
                drop(self.real.places[place].take());
                let m = owner.insert(heap.attach());
                self.model.put(place, None);
                self.safepoint(m);
            }
            Step::Blocking => {
                let detached =
                    owner.take().expect("attached").into_detached().expect("nothing is lent");
                let m = owner.insert(detached.attach().expect("nowhere else"));
                self.safepoint(m);
            }
            Step::Send(place, errand, detached) => self.send(m, place, errand, detached),
            Step::Go(_) | Step::End(_) => unreachable!("the crew's"),
        }
    }

    fn link(&mut self, m: &Mutator, from: &Ref, from_id: Id, to: Ref, to_id: Id) {
        let pushed = from.push(m, to);
        assert_eq!(pushed, self.model.push(from_id, to_id), "is there room?");
    }

    /// A step has found a handle, or none, as the model says; it goes into a place.
    fn found(&mut self, m: &Mutator, place: usize, gc: Option<Ref>, id: Option<Id>) {
        assert_eq!(gc.as_ref().map(|gc| gc.id(m, &self.real.world)), id, "what was found");
        if gc.is_some() {
            self.put(place, gc, id);
        }
    }

    fn swap(&mut self, m: &Mutator, place: usize, k: usize, with: usize) {
        let new = self.at(with);
        let Some((gc, id)) = self.at(place) else { return };
        let (Some(slot), true) = (gc.slot(m, k), self.model.fits_slot(id, new.map(|(_, id)| id)))
        else {
            return;
        };
        let new_id = new.map(|(_, id)| id);
        let old = slot.swap(m, new.and_then(|(gc, _)| gc.plain()));
        let old_id = std::mem::replace(&mut self.model.node(id).fields[k], new_id);
        self.model.retired.extend(old_id);
        assert_eq!(old.is_some(), old_id.is_some());
        self.put(with, old.map(Ref::Plain), old_id);
    }

    fn exchange(&mut self, m: &Mutator, place: usize, k: usize, current: usize, new: usize) {
        let (current, new) = (self.at(current), self.at(new));
        let Some((gc, id)) = self.at(place) else { return };
        let fits = |other: Option<(&Ref, Id)>| self.model.fits_slot(id, other.map(|(_, id)| id));
        let (Some(slot), true, true) = (gc.slot(m, k), fits(current), fits(new)) else { return };
        let (current_id, new_id) = (current.map(|(_, id)| id), new.map(|(_, id)| id));
        let current = current.and_then(|(gc, _)| gc.plain());
        let result = slot.compare_exchange(m, current.as_ref(), new.and_then(|(gc, _)| gc.plain()));
        let field = &mut self.model.node(id).fields[k];
        assert_eq!(result.is_ok(), *field == current_id, "does the slot hold what was expected?");
        if result.is_ok() {
            let old = std::mem::replace(field, new_id);
            self.model.retired.extend(old);
        }
        drop(result);
    }

    fn watch(&mut self, m: &Mutator, target: usize, holds: usize, place: usize) {
        let Some((gc, target_id)) = self.at(target) else { return };
        let shape = match gc {
            Ref::Plain(_) | Ref::Final(_) => Shape::Watcher,
            Ref::Dynamic(_) => Shape::DynWatcher,
            _ => return,
        };
        // A dynamic callback is an object from which its world is found.
        let callback = |id: &Id| shape == Shape::Watcher || self.model.alive[id].shape.is_dynamic();
        let holds = self.at(holds).filter(|(_, id)| callback(id));
        let (held, held_id) = (holds.map(|(gc, _)| gc.clone()), holds.map(|(_, id)| id));
        let calls = shape == Shape::Watcher || held.is_some();
        let gc = gc.clone();
        let id = self.model.name();
        let watcher = gc.watch(m, &self.real.world, id, held);
        drop(gc);
        self.model.add_watcher(id, shape, target_id, held_id, calls);
        self.put(place, Some(watcher), Some(id));
    }

    fn send(&mut self, m: &mut Mutator, place: usize, errand: Errand, detached: bool) {
        let Some((_, id)) = self.at(place) else { return };
        let gc = match errand {
            Errand::Drop | Errand::DropAttached => self.real.places[place].take(),
            Errand::Clone | Errand::Link => self.real.places[place].clone(),
        }
        .expect("asked above");
        let (heap, world) = (m.heap().clone(), self.real.world.clone());
        let thread = move || match errand {
            Errand::Drop => {
                drop(gc);
                None
            }
            Errand::DropAttached => {
                let m = heap.attach();
                world.release(gc);
                drop(m);
                None
            }
            Errand::Clone => Some(gc.clone()),
            Errand::Link => {
                let m = heap.attach();
                gc.push(&m, gc.clone());
                None
            }
        };
        let go = || std::thread::spawn(thread).join().expect("no panic");
        let back = if detached { m.detach(go) } else { go() };
        match errand {
            Errand::Drop | Errand::DropAttached => self.model.put(place, None),
            Errand::Clone => self.put(place, back, Some(id)),
            Errand::Link => {
                self.model.push(id, id);
            }
        }
        self.safepoint(m);
    }

    fn safepoint(&mut self, m: &mut Mutator) {
        m.safepoint();
        self.model.safepoint();
        if self.variety == Variety::Stress {
            self.model.collect(true);
        }
    }

    fn collected(&mut self, full: bool, report: &CollectionReport) {
        let expected = self.model.collect(full);
        let got = Expected {
            candidates: report.candidates,
            unreachable: report.unreachable,
            finalized: report.finalized,
            resurrected: report.resurrected,
            collected: report.collected,
            uncollectable: report.uncollectable,
        };
        assert_eq!(got, expected, "{report:?}");
        assert_eq!((&report.abandoned, report.overvisited), (&None, 0));
    }

    // ----------------------------------------------------------------------------- looking at both

    /// Everything that can be seen must be as the model says.
    fn compare(&mut self, m: &mut Mutator) {
        let Self { real, model, .. } = self;
        let world = &*real.world;
        let got = std::mem::take(&mut *world.events.lock().unwrap()).sorted();
        assert_eq!(
            got,
            std::mem::take(&mut model.events).sorted(),
            "who was finalized, and who panicked"
        );
        {
            let alive = world.alive.lock().unwrap();
            let expected =
                model.alive.iter().filter(|(_, node)| node.has_destructor()).map(|(id, _)| id);
            assert!(
                alive.iter().eq(expected.clone()),
                "alive: {alive:?} and not {:?}",
                expected.collect::<Vec<_>>()
            );
        }
        let called = world.called.lock().unwrap();
        assert!(called.values().all(|&times| times == 1), "called more than once: {called:?}");
        let counts = model.counts();
        for (place, gc) in real.places.iter().enumerate() {
            let id = model.places[place];
            assert_eq!(gc.as_ref().map(|gc| gc.id(m, world)), id, "h{place}");
            if let (Some(gc), Some(id)) = (gc, id) {
                check_object(m, world, model, gc, id);
                assert_eq!(
                    gc.any().strong_count(),
                    counts[&id].saturating_add(1),
                    "the count of {id}, in h{place}"
                );
            }
        }
        for (anchor, id) in real.anchors.iter().zip(ANCHORS) {
            check_object(m, world, model, anchor, id);
        }
        for (id, node) in model.alive.iter().filter(|(_, node)| node.calls()) {
            assert_eq!(called.contains_key(id), node.called, "was the callback of {id} called?");
        }
        drop(called);
        for (w, weak) in real.weaks.iter().enumerate() {
            let got = weak.as_ref().and_then(|weak| weak.upgrade(m)).map(|gc| gc.id(m, world));
            assert_eq!(got, model.led_to(w), "w{w}");
        }
        if !model.retired.is_empty() {
            // The following stops the world, and a stop is a safepoint to all threads.
            return;
        }
        let frozen = model.alive.values().filter(|node| node.frozen && node.tracked).count();
        assert_eq!(m.frozen(), frozen, "how many are frozen");
        // All that is listed, with all counts.
        let mut listed: BTreeMap<Id, usize> = BTreeMap::new();
        let objects = m.objects();
        let names = world.names.lock().unwrap();
        for any in &objects {
            let id = names[&(standstill::dynamic::as_raw(any).as_ptr() as usize)];
            let count = any.strong_count();
            // The list's own reference is none of the program's.
            listed.insert(id, if count == usize::MAX { count } else { count - 1 });
        }
        assert_eq!(listed.len(), objects.len(), "listed twice");
        drop(names);
        let expected = model.alive.iter().filter(|(_, node)| node.tracked && !node.frozen);
        let expected: BTreeMap<Id, usize> = expected.map(|(&id, _)| (id, counts[&id])).collect();
        assert_eq!(listed, expected, "who is tracked, and how many references lead there");
    }

    /// Takes everything down. Comes back: the addresses of the objects that must be left in the
    /// heap.
    fn finish(mut self, owner: &mut Option<Mutator>) -> Vec<usize> {
        let world = self.real.world.clone();
        let m = owner.as_mut().expect("attached");
        m.verify().expect("a sound heap");
        // Otherwise uncollectable objects, or objects that always resurrect, would keep their heap.
        m.heap().services().expect_legacy_finalizers(false);
        world.meek.store(true, SeqCst);
        self.model.meek = true;
        for place in 0..PLACES {
            self.step(owner, Step::Drop(place));
        }
        self.step(owner, Step::Unname);
        self.step(owner, Step::Unfreeze);
        // Cycles through untracked objects are no garbage. They are tracked again, through an
        // internal function.
        let m = owner.as_mut().expect("attached");
        for (&address, id) in &*world.names.lock().unwrap() {
            if let Some(node) =
                self.model.alive.get_mut(id).filter(|node| !node.tracked && !node.immortal)
            {
                // SAFETY: the living object that was allocated last at an address lies there.
                unsafe { dynamics::at(m, address) }.track(m);
                node.track();
            }
        }
        // Each finalizer may still bring its object back, once, with others that then do the same.
        let mut before = usize::MAX;
        while self.model.alive.len() < before {
            before = self.model.alive.len();
            for _ in 0..2 {
                for step in [
                    Step::ClearAnchor(0),
                    Step::ClearAnchor(1),
                    Step::ClearShelf,
                    Step::TakeGarbage,
                    Step::Full,
                ] {
                    self.step(owner, step);
                    self.compare(owner.as_mut().expect("attached"));
                }
            }
        }
        let Self { real, mut model, .. } = self;
        drop(real);
        world.types.lock().unwrap().clear();
        model.release();
        let m = owner.as_mut().expect("attached");
        m.collect();
        model.collect(true);
        let faults = std::mem::take(&mut *world.faults.lock().unwrap());
        assert!(faults.is_empty(), "{faults:?}");
        let names = world.names.lock().unwrap();
        let left: Vec<_> = names
            .iter()
            .filter(|(_, id)| model.alive.contains_key(id))
            .map(|(&address, _)| address)
            .collect();
        assert_eq!(left.len(), model.alive.len(), "each has an address of its own");
        left
    }
}

/// A held object, beside the model's view of it.
fn check_object(m: &Mutator, world: &World, model: &Model, gc: &Ref, id: Id) {
    let node = &model.alive[&id];
    let any = gc.any();
    assert_eq!(any.is_tracked(m), node.tracked, "is {id} tracked?");
    assert_eq!(any.is_finalized(m), node.finalized, "is {id} finalized?");
    let id_of = |gc: Ref| gc.id(m, world);
    if let Some(target) = gc.upgrade_any(m) {
        assert_eq!(target.map(id_of), node.watches, "where the weak reference {id} leads");
    }
    if let Some(me) = gc.itself(m) {
        assert_eq!(me.map(id_of), Some(id), "where {id}'s weak reference to itself leads");
    }
    if matches!(node.shape, Shape::DynWatcher | Shape::Type) {
        return;
    }
    let mut fields: Vec<Option<Id>> =
        gc.fields(m).into_iter().map(|field| field.map(id_of)).collect();
    let mut expected = node.fields.clone();
    if !model.is_ordered(id) {
        fields.sort_unstable();
        expected.sort_unstable();
    }
    assert_eq!(fields, expected, "what {id} refers to");
}
