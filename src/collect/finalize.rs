//! Steps 6b, 8 and 9: taking hold of the unreachable, running user code on it, and looking again.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::base::event::{self, During, Phase};
use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::stress::{Step, maybe_yield};
use crate::base::sync::{Mutex, Ordering};
use crate::collect::count::{Abandoned, guard_traversal, object_at};
use crate::collect::look::tracer;
use crate::collect::portions::Portions;
use crate::heap::model::{Found, ModelMutator, ObjectModel, Verdict};
use crate::heap::mutator::{Core, World};
use crate::memory::space::Space;
use crate::object::state;
use crate::object::type_info::{Object, Tracer};
use crate::safepoint::ThreadId;

/// Which threads go on after the stop and can bury what lies on their pages; all else is the collecting thread's.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    /// By the number of the arena, which is small.
    arenas: Vec<Option<ThreadId>>,
}

impl Homes {
    /// The threads that are parked now. Those for whom there is no memory leave theirs to the collecting one.
    pub(crate) fn of_parked<M: ObjectModel>(world: &World<'_, M>) -> Self {
        let mut arenas = Vec::new();
        world.parked(|arena, thread| {
            let missing = (arena as usize + 1).saturating_sub(arenas.len());
            if arenas.try_reserve(missing).is_ok() {
                arenas.extend(std::iter::repeat_n(None, missing));
                arenas[arena as usize] = Some(thread);
            }
        });
        Self { arenas }
    }

    /// Whether all is one thread's.
    pub(crate) fn is_empty(&self) -> bool {
        self.arenas.is_empty()
    }

    /// Those threads.
    pub(crate) fn threads(&self) -> impl Iterator<Item = ThreadId> {
        self.arenas.iter().flatten().copied()
    }

    /// Whose the object is, by the page that it lies on.
    pub(crate) fn of(&self, object: Object, space: &Space) -> Option<ThreadId> {
        // SAFETY: rule G: a page that an object lies on, or lay on, was handed out.
        let page = unsafe { space.page_of(object.address()) };
        self.arenas.get(page.arena() as usize).copied().flatten()
    }
}

/// Candidates that nothing outside refers to. Each is held by the thread that is to bury it, and carries the
/// `UNREACHABLE` bit. Still in the stop that found them.
#[must_use]
pub(crate) struct Unreachable<M: ObjectModel> {
    objects: Vec<Object>,
    homes: Homes,
    callbacks: Vec<M::Callback>,
    runs_code: bool,
    exempt: Exempt,
    doubt: Option<Abandoned>,
}

/// Unreachable objects that were taken out of the set right after the claim: ordinary objects again, but held.
#[derive(Debug, Default)]
pub(crate) struct Exempt {
    /// Uncollectable: objects with a legacy finalizer, and what these reach.
    objects: Vec<Object>,
    /// Of these, the ones with a legacy finalizer.
    legacy: Vec<Object>,
    /// Kept out of doubt.
    spared: Vec<Object>,
}

/// Unreachable objects whose finalizers have run: some may be reachable again.
#[must_use]
#[derive(Default)]
pub(crate) struct Pending {
    objects: Vec<Object>,
    homes: Homes,
    pub(crate) finalized: usize,
    /// Whether user code ran: only then can anything have changed.
    pub(crate) looked_at: bool,
    exempt: Exempt,
    /// Why everything was kept, if it was.
    pub(crate) doubt: Option<Abandoned>,
}

/// Objects that are to be cleared: nothing reaches them, and all weak references to them are dead.
#[must_use]
#[derive(Default)]
pub(crate) struct Garbage {
    pub(crate) objects: Vec<Object>,
    pub(crate) homes: Homes,
    /// Held, but reachable again, or no longer tracked: only the hold is dropped. Several lists, because putting them
    /// into one would take memory.
    pub(crate) spared: [Vec<Object>; 4],
    pub(crate) resurrected: usize,
    /// Those that count as uncollectable although nobody tries to clear them; among the spared, once judged.
    pub(crate) kept: usize,
    exempt: Exempt,
}

impl Garbage {
    fn none(homes: Homes, exempt: Exempt) -> Self {
        Self { homes, exempt, ..Self::default() }
    }
}

/// Step 6b. Claims the unreachable objects, clears their weak references with callbacks, and, if nothing
/// in the set can run code, all others too.
pub(crate) fn claim<M: ObjectModel>(
    world: &World<'_, M>,
    found: Vec<Object>,
    homes: Homes,
    workers: usize,
) -> Unreachable<M> {
    let _phase = event::phase(Phase::Claim);
    let core = world.core();
    let has_legacy = core.model.has_legacy();
    let mut looks = hold_all(world, &found, &homes, if has_legacy { 1 } else { workers });
    let (mut objects, mut left_out, mut doubt) = (found, Exempt::default(), None);
    if has_legacy {
        // First, so that what leaves the set is like any object outside for the rest.
        match exempt(world, &objects) {
            Ok(told_apart) => (objects, left_out) = told_apart,
            Err(abandoned) => {
                left_out.spared = std::mem::take(&mut objects);
                doubt = Some(abandoned);
            }
        }
        looks = Looks::default();
        objects.iter().for_each(|&object| looks.look(object, core));
    }
    let Looks { mut runs_code, mut weak, looked } = looks;
    // SAFETY: rules R and W: held, and the world is stopped.
    let due = weak.iter().map(|&object| unsafe { core.model.callbacks(object) }).sum();
    let mut callbacks = Vec::new();
    let looked = looked.and_then(|()| Ok(callbacks.try_reserve_exact(due)?));
    if let Err(no_memory) = looked {
        // Weak references that are not known, or whose callbacks are lost, could lead to what is cleared.
        left_out.spared = std::mem::take(&mut objects);
        (runs_code, doubt) = (false, Some(no_memory.into()));
        weak.clear();
    }
    for &object in left_out.objects.iter().chain(&left_out.spared) {
        // SAFETY: rules R and W: held, and the world is stopped.
        unsafe { core.state(object.address()) }.survive();
    }
    let mut set = Unreachable { objects, homes, callbacks, runs_code, exempt: left_out, doubt };
    let is_unreachable = |object: Object| {
        core.space.contains(object.address()) && {
            // SAFETY: rule R: the model asks about objects that are alive.
            let state = unsafe { core.state(object.address()) };
            state.get() & state::UNREACHABLE != 0
        }
    };
    for &object in &weak {
        steps::took(1);
        // SAFETY: rules R and W: held, and the world is stopped.
        unsafe { core.model.take_callbacks(object, &is_unreachable, world, &mut set.callbacks) };
    }
    set.runs_code |= !set.callbacks.is_empty();
    if !set.runs_code {
        for &object in &weak {
            // SAFETY: as above.
            unsafe { core.model.clear_weak(object) };
        }
    }
    set
}

/// What one look at each claimed object has shown.
struct Looks {
    runs_code: bool,
    /// Those with weak references.
    weak: Vec<Object>,
    looked: Result<(), NoMemory>,
}

impl Default for Looks {
    fn default() -> Self {
        Self { runs_code: false, weak: Vec::new(), looked: Ok(()) }
    }
}

impl Looks {
    #[inline(always)]
    fn look<M: ObjectModel>(&mut self, object: Object, core: &Core<M>) {
        // SAFETY: rule W: a candidate is alive, and the world is stopped.
        unsafe {
            let state = core.state(object.address()).get();
            self.runs_code |= state & state::FINALIZED == 0 && core.model.has_finalizer(object);
            if core.model.has_weak(object) {
                self.looked = self.looked.and(fallible::push(&mut self.weak, object));
            }
        }
    }

    /// Takes the objects, each for the thread that is to bury it.
    fn hold<M: ObjectModel>(&mut self, world: &World<'_, M>, objects: &[Object], homes: &Homes) {
        let core = world.core();
        steps::took(objects.len());
        for &object in objects {
            maybe_yield(&core.under, Step::Hold);
            // SAFETY: rule W: a candidate is alive, and the world is stopped.
            unsafe {
                let holder = if homes.is_empty() { None } else { homes.of(object, &core.space) };
                core.model.hold(object, holder.unwrap_or(world.requester()));
                // Alone: whoever else changes states is attached, hence parked, or works on other objects here.
                core.state(object.address()).change_plainly(state::UNREACHABLE, 0);
            }
            self.look(object, core);
        }
    }

    fn add(&mut self, mut other: Self) {
        self.runs_code |= other.runs_code;
        let added = fallible::append(&mut self.weak, &mut other.weak);
        self.looked = self.looked.and(other.looked).and(added);
    }
}

/// Holds all of `found`, page by page: each worker first what lies on its own pages, and is in its caches. Without memory to write
/// down what is whose, this thread does it alone.
fn hold_all<M: ObjectModel>(
    world: &World<'_, M>,
    found: &[Object],
    homes: &Homes,
    workers: usize,
) -> Looks {
    let space = &world.core().space;
    let mut looks = Looks::default();
    let pages = if workers > 1 { pages_of(found, space) } else { Err(NoMemory) };
    let Ok(pages) = pages else {
        looks.hold(world, found, homes);
        return looks;
    };
    let share = pages.share(1);
    let all = Mutex::new(Looks::default());
    world.share(workers, &|seat| {
        let mut mine = Looks::default();
        for pages in share.of(seat) {
            for range in pages {
                mine.hold(world, &found[range.clone()], homes);
            }
        }
        all.lock().add(mine);
    });
    std::mem::swap(&mut looks, &mut all.lock());
    // In the order of memory, whoever has found what.
    steps::took(looks.weak.len());
    looks.weak.sort_unstable();
    looks
}

/// Ranges of `found`, which goes up, each on a page of its own.
fn pages_of(found: &[Object], space: &Space) -> Result<Portions<Range<usize>>, NoMemory> {
    let page = |object: Object| space.page_index(object.address());
    let mut ranges = Vec::new();
    steps::took(found.len());
    for part in found.chunk_by(|&one, &next| page(one) == page(next)) {
        let start = ranges.last().map_or(0, |range: &Range<usize>| range.end);
        fallible::push(&mut ranges, start..start + part.len())?;
    }
    let home = |range: &Range<usize>| space.page(page(found[range.start])).arena();
    Portions::by_home(ranges, home, |range| range.start)
}

/// Tells the objects with legacy finalizers, and all that they reach in the set, from the rest. A field that cannot be
/// read now, or a handler that fails, leaves open who is reached.
fn exempt<M: ObjectModel>(
    world: &World<'_, M>,
    objects: &[Object],
) -> Result<(Vec<Object>, Exempt), Abandoned> {
    let core = world.core();
    let (space, model) = (&core.space, &core.model);
    let mut found = Exempt::default();
    for &object in objects {
        // SAFETY: rules R and W: held, and the world is stopped.
        if unsafe { model.legacy(object) } {
            fallible::push(&mut found.legacy, object)?;
        }
    }
    if found.legacy.is_empty() {
        return Ok((fallible::collect(objects.iter().copied())?, found));
    }
    let mut stack = fallible::collect(found.legacy.iter().copied())?;
    let mut reached = HashSet::new();
    reached.try_reserve(stack.len()).map_err(NoMemory::from)?;
    reached.extend(stack.iter().copied());
    let mut doubt = None;
    let result = guard_traversal(world, &mut tracer(space), |tracer| {
        while let Some(object) = stack.pop() {
            tracer.begin(object);
            // SAFETY: rules R and W: held, and the world is stopped.
            unsafe { model.traverse(object, tracer) };
            if tracer.take_unreadable() {
                tracer.lost_nothing()?;
                doubt = Some(object);
                return Ok(());
            }
            steps::took(1 + tracer.edges().len());
            for &edge in tracer.edges() {
                let target = object_at(space, space.granule(edge));
                // SAFETY: rule W: edges lead to live objects.
                let state = unsafe { core.state(target.address()) }.get();
                reached.try_reserve(1)?;
                if state & state::UNREACHABLE != 0 && reached.insert(target) {
                    fallible::push(&mut stack, target)?;
                }
            }
        }
        Ok::<_, NoMemory>(())
    });
    result??;
    let mut left = Vec::new();
    found.objects.try_reserve_exact(reached.len()).map_err(NoMemory::from)?;
    left.try_reserve_exact(objects.len() - reached.len()).map_err(NoMemory::from)?;
    for &object in objects {
        if reached.contains(&object) { &mut found.objects } else { &mut left }.push(object);
    }
    match doubt {
        None => Ok((left, found)),
        Some(object) => Err(Abandoned {
            reason: "a field that leads from a legacy finalizer cannot be read now".into(),
            // SAFETY: rule R: held.
            type_name: unsafe { model.type_name(object) },
        }),
    }
}

/// Step 8. With the world running: weak callbacks, then finalizers, once per object.
pub(crate) fn finalize<M: ObjectModel>(set: Unreachable<M>, m: &ModelMutator<M>) -> Pending {
    let Unreachable { objects, homes, callbacks, runs_code, exempt, doubt } = set;
    let mut pending = Pending { objects, homes, finalized: 0, looked_at: runs_code, exempt, doubt };
    if !runs_code {
        return pending;
    }
    let core = m.core();
    let _lent = m.lend();
    {
        let _phase = event::phase(Phase::Callbacks);
        for callback in callbacks {
            if let Err(payload) = event::guarded(|| core.model.call_back(callback, m)) {
                core.hooks.unraisable(During::WeakCallback, "", event::panic_message(payload));
            }
        }
    }
    let _phase = event::phase(Phase::Finalize);
    for &object in &pending.objects {
        // SAFETY: rule R: held since the claim.
        unsafe {
            let state = core.state(object.address());
            if state.get() & state::FINALIZED != 0 || !core.model.has_finalizer(object) {
                continue;
            }
            // Before the call: once, whatever the finalizer does, and whoever else calls it now by a weak reference.
            if state.set(state::FINALIZED) & state::FINALIZED != 0 {
                continue;
            }
            pending.finalized += 1;
            if let Err(payload) = event::guarded(|| core.model.finalize(object, m)) {
                let name = core.model.type_name(object);
                let text = event::panic_message(payload);
                core.hooks.unraisable_at(During::Finalize, name, object.address(), text);
            }
        }
    }
    pending
}

impl Pending {
    /// Moves the set out, for a step that may not come to pass.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Nothing ran that could have changed anything: what was unreachable is garbage.
    pub(crate) fn untouched(self) -> Garbage {
        debug_assert!(!self.looked_at);
        Garbage { objects: self.objects, ..Garbage::none(self.homes, self.exempt) }
    }
}

/// Step 9. What is reachable from outside the set again, with all it reaches, leaves it; the rest loses
/// its remaining weak references.
///
/// The same counting as in step 4, over the set alone. A handler that fails here keeps the whole set alive.
pub(crate) fn recheck<M: ObjectModel>(
    world: &World<'_, M>,
    pending: Pending,
) -> (Garbage, Option<Abandoned>) {
    let _phase = event::phase(Phase::Recheck);
    let core = world.core();
    let (space, model) = (&core.space, &core.model);
    let marks = space.counts();
    let mut garbage = Garbage::none(pending.homes, pending.exempt);
    let bits = |object: Object| {
        // SAFETY: rules R and W: every object of the set is held, and edges lead to live objects.
        unsafe { core.state(object.address()) }.get()
    };
    const IN_SET: u8 = state::UNREACHABLE | state::TRACKED;
    let in_set = |bits: u8| bits & IN_SET == IN_SET;
    let granule = |object: Object| space.granule(object.address());

    let mut internal = HashMap::<usize, i64>::new();
    let mut reachable: Vec<Object> = Vec::new();
    // Objects with a field that counting could not read: their targets are reachable, for all we know.
    let mut unreadable = HashSet::<usize>::new();
    // What each object was seen to refer to, for models whose traversals do not repeat themselves.
    let mut kept = HashMap::<usize, Vec<usize>>::new();
    let mut doubt = None;
    let result = guard_traversal(world, &mut tracer(space), |tracer| {
        // Only members are entered, each once.
        internal.try_reserve(pending.objects.len())?;
        let visit = |object: Object, tracer: &mut Tracer| {
            tracer.begin(object);
            // SAFETY: rules R and W: held, or an edge from what is held; the world is stopped.
            unsafe { model.traverse(object, tracer) };
            let readable = !tracer.take_unreadable();
            if !readable {
                tracer.lost_nothing()?;
                tracer.clear();
            }
            Ok::<_, NoMemory>(readable)
        };
        for &object in &pending.objects {
            if !in_set(bits(object)) {
                continue;
            }
            if !visit(object, tracer)? {
                unreadable.try_reserve(1)?;
                unreadable.insert(granule(object));
            }
            if !M::STABLE_DURING_STOP {
                kept.try_reserve(1)?;
                kept.insert(granule(object), fallible::collect(tracer.edges().iter().copied())?);
            }
            steps::took(1 + tracer.edges().len());
            for &edge in tracer.edges() {
                if in_set(bits(object_at(space, space.granule(edge)))) {
                    *internal.entry(space.granule(edge)).or_default() += 1;
                }
            }
        }
        for &object in &pending.objects {
            if !in_set(bits(object)) {
                continue;
            }
            // One reference is the claim's.
            // SAFETY: rules R and W: held, and the world is stopped.
            let outside = unsafe { model.count(object) }
                .is_none_or(|n| n - 1 != internal.get(&granule(object)).copied().unwrap_or(0));
            if outside {
                marks[granule(object)].store(1, Ordering::Relaxed);
                fallible::push(&mut reachable, object)?;
            }
        }
        while let Some(object) = reachable.pop() {
            let edges = match kept.get(&granule(object)) {
                Some(edges) => edges,
                None => {
                    if !visit(object, tracer)? && !unreadable.contains(&granule(object)) {
                        doubt = Some(object);
                        return Ok(());
                    }
                    tracer.edges()
                }
            };
            steps::took(1 + edges.len());
            for &edge in edges {
                let target = space.granule(edge);
                let object = object_at(space, target);
                if marks[target].load(Ordering::Relaxed) == 0 && in_set(bits(object)) {
                    marks[target].store(1, Ordering::Relaxed);
                    fallible::push(&mut reachable, object)?;
                }
            }
        }
        Ok::<_, NoMemory>(())
    });
    let mut abandoned = result.and_then(|looked| Ok(looked?)).err();
    if let Some(object) = doubt {
        abandoned = Some(Abandoned {
            reason: "a field that could be read when references were counted is locked now".into(),
            // SAFETY: rule R: held.
            type_name: unsafe { model.type_name(object) },
        });
    }
    // The two lists share the set's memory, but for those that are few, mostly.
    let mut spared = Vec::new();
    let is_garbage = |object: Object| {
        marks[granule(object)].load(Ordering::Relaxed) == 0 && in_set(bits(object))
    };
    let many = pending.objects.iter().filter(|&&object| !is_garbage(object)).count();
    if abandoned.is_none() && spared.try_reserve_exact(many).is_err() {
        abandoned = Some(NoMemory.into());
    }
    let mut objects = pending.objects;
    let mut survives = |object: Object| {
        // SAFETY: rules R and W: held, and the world is stopped.
        unsafe { core.state(object.address()) }.survive();
        garbage.resurrected += usize::from(bits(object) & state::TRACKED != 0);
    };
    if abandoned.is_some() {
        objects.iter().copied().for_each(&mut survives);
        spared = std::mem::take(&mut objects);
    } else {
        objects.retain(|&object| {
            let garbage = is_garbage(object);
            if garbage {
                // SAFETY: rules R and W: held, and the world is stopped.
                unsafe { model.clear_weak(object) };
            } else {
                survives(object);
                spared.push(object);
            }
            garbage
        });
    }
    for &object in objects.iter().chain(&spared) {
        marks[granule(object)].store(0, Ordering::Relaxed);
    }
    garbage.objects = objects;
    garbage.spared[0] = spared;
    (garbage, abandoned)
}

/// Instead of step 9, when the world cannot be stopped any more: keeps the whole set.
pub(crate) fn keep<M: ObjectModel>(pending: Pending, m: &ModelMutator<M>) -> Garbage {
    for &object in &pending.objects {
        // SAFETY: rule R: held since the claim.
        unsafe { m.core().state(object.address()) }.survive();
    }
    let resurrected = pending.objects.len();
    let mut garbage = Garbage { resurrected, ..Garbage::none(pending.homes, pending.exempt) };
    garbage.spared[0] = pending.objects;
    garbage
}

/// Between steps 9 and 10, the world running: the model hears what is garbage, and decides.
pub(crate) fn judge<M: ObjectModel>(mut garbage: Garbage, m: &ModelMutator<M>) -> Garbage {
    let exempt = std::mem::take(&mut garbage.exempt);
    let found = Found::new(&garbage.objects, &exempt.objects, &exempt.legacy);
    let mut verdict = Verdict::Clear;
    if !found.garbage.is_empty() || !found.uncollectable.is_empty() {
        let _lent = m.lend();
        // SAFETY: rule R: held since the claim.
        match event::guarded(|| unsafe { m.model().judge(&found, m) }) {
            Ok(decided) => verdict = decided,
            Err(payload) => {
                // Doubt keeps everything alive.
                verdict = Verdict::Keep;
                m.core().hooks.unraisable(During::Clear, "", event::panic_message(payload));
            }
        }
    }
    garbage.kept = exempt.objects.len();
    garbage.spared[1] = exempt.objects;
    garbage.spared[2] = exempt.spared;
    if verdict == Verdict::Keep {
        for object in &garbage.objects {
            // SAFETY: rule R: held since the claim.
            let state = unsafe { m.core().state(object.address()) };
            // One that somebody has untracked meanwhile is no less kept.
            garbage.kept += usize::from(state.survive());
        }
        garbage.spared[3] = std::mem::take(&mut garbage.objects);
    }
    garbage
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::base::event::CollectionKind;
    use crate::collect::count::Scope;
    use crate::collect::protocol::tests::{Raw, Script};
    use crate::heap::model::ModelHeap;
    use crate::{Heap, Pacing};

    fn heap() -> ModelHeap<Script> {
        let builder =
            Heap::builder().reserve(1 << 28).workers(2).serial_below(0).pacing(Pacing::manual());
        builder.build_with(Script::default()).expect("a heap")
    }

    /// Objects on several pages, some of them on one page.
    fn things(m: &Raw) -> Vec<Object> {
        let sizes = [32, 32, 60_000, 32, 60_000, 60_000];
        let mut things: Vec<Object> =
            sizes.iter().map(|&size| Script::sized(m, size, 'w', "w", "s")).collect();
        things.sort_unstable();
        things
    }

    #[test]
    fn what_lies_on_one_page_is_held_together() {
        let heap = heap();
        let m = heap.attach();
        let things = things(&m);
        let space = &m.core().space;
        let ranges: Vec<Range<usize>> = pages_of(&things, space).expect("memory").into_items();
        assert_eq!(ranges, [0..3, 3..4, 4..5, 5..6]);
    }

    /// The thread that stops the world begins with its own pages. Here other pages lie before them.
    #[test]
    fn weak_references_are_looked_at_in_the_order_of_memory() {
        let heap = heap();
        let m = heap.attach();
        let things = things(&m);
        let world = m.stop_here().expect("a stop");
        let space = &world.core().space;
        let scope = Scope::new(space, CollectionKind::Full).expect("memory");
        let pages = scope.pages();
        let arenas: Vec<u32> =
            pages.iter().map(|&page| space.page(page as usize).arena()).collect();
        let own = |page: u32, arena: u32| {
            // SAFETY: rule W: the world is stopped.
            unsafe { space.info(page).set_arena(arena) };
        };
        // The first page, of small objects, is this thread's.
        pages[..2].iter().for_each(|&page| own(page, arenas[0] + 7));
        pages[2..].iter().for_each(|&page| own(page, arenas[0]));
        let Looks { runs_code, weak, looked } = hold_all(&world, &things, &Homes::default(), 2);
        pages.iter().zip(arenas).for_each(|(&page, arena)| own(page, arena));
        assert_eq!((runs_code, looked), (false, Ok(())));
        assert_eq!(weak, things);
    }

    #[test]
    fn a_look_that_a_worker_had_no_memory_for_is_not_forgotten() {
        let lost = || Looks { looked: Err(NoMemory), ..Looks::default() };
        let code = || Looks { runs_code: true, ..Looks::default() };
        for (mut all, more) in [(lost(), code()), (code(), lost())] {
            all.add(more);
            assert_eq!((all.looked, all.runs_code), (Err(NoMemory), true));
        }
    }

    /// Also with objects that legacy finalizers keep.
    #[test]
    fn objects_that_are_kept_out_of_doubt_stay_held_whatever_the_verdict() {
        let heap = heap();
        let m = heap.attach();
        let things = things(&m);
        heap.model().keep_all();
        let exempt = Exempt {
            objects: vec![things[0]],
            legacy: vec![things[0]],
            spared: vec![things[1], things[2]],
        };
        let garbage = judge(Garbage::none(Homes::default(), exempt), &m);
        let [spared, exempt, doubted, kept] = garbage.spared;
        assert_eq!((spared, kept), (vec![], vec![]));
        assert_eq!((exempt, doubted), (vec![things[0]], vec![things[1], things[2]]));
        assert_eq!((garbage.kept, garbage.objects), (1, vec![]));
    }
}
