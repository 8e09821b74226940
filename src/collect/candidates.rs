//! The candidates of a collection, and the marks of its workers.
//!
//! Each table has one bit for each granule, except `queued`, which has a byte for each page:
//!
//! | table | its bit is set | while marking, written by |
//! |---|---|---|
//! | `unmarked` | for a candidate that no worker has marked | the worker that marks the candidate |
//! | `unseen`, one for each worker | for a candidate to which the worker has met no edge | that worker |
//! | `assumed` | for an [assumed root](super::remembered) | no thread |
//! | `queued` | for a page that waits in a queue | the workers that queue or take it |
//!
//! Counting marks an outside candidate that refers to nothing: the worker that counts a page is the
//! only one that accesses its words then.
//!
//! A worker marks each reachable candidate, and traverses it: once, except with *plain marks*.
//! After marking, the unmarked candidates are the unreachable ones. No step of marking writes a
//! state byte.
//!
//! # Pages as units of work
//!
//! A worker that meets an edge clears the target's bit in its own table `unseen`, and puts the
//! target's page into its queue, unless the page is in a queue. A worker that takes a page from a
//! queue marks all unmarked candidates of the page that some worker has seen, in the order of
//! memory. So objects are traversed page by page, and a queue needs no more room than there are
//! pages.
//!
//! Two rules make this right with several workers:
//!
//! * *Marked once.* A worker marks candidates by a `fetch_and` of a word of `unmarked`. The old
//!   word tells which candidates the worker has marked.
//! * *Seen, then queued.* A worker clears bits in `unseen`, passes a fence, and reads `queued`. A
//!   worker that takes a page clears `queued`, passes a fence, and reads `unseen` of all workers.
//!   Both fences are `SeqCst`. So the first worker finds that the page is not queued, and queues
//!   it, or the second worker finds the object seen.
//!
//! A single worker needs neither the `fetch_and` nor the fences. It may mark a candidate without
//! clearing its bit in `unseen`: a later edge to the candidate then finds it marked.
//!
//! # Plain marks
//!
//! A `fetch_and` takes long if another processor has written the word. So before counting, if the
//! model allows it ([`ObjectModel::OVERLAPPING_TRAVERSALS`]), workers mark by a load and a store of
//! the word. Two workers that write one word at the same time have two effects:
//!
//! * *An object is traversed twice*: both workers load its bit before one of them stores. So the
//!   number of traversals is not the number of marked candidates, which are counted afterwards.
//! * *A mark is lost*: a worker stores a word that it has loaded before the mark.
//!
//! No object is lost with its mark. An object without a mark is counted. If a marked object refers
//! to it by a counted reference, counting finds no candidate with this reference, so the object is
//! a root. If an unmarked object refers to it, that object is a root or can be reached from one,
//! for the same reason. No count shows an uncounted reference or a reported root: their targets
//! are marked again, when no worker marks.
//!
//! Marking ends. A worker stores fewer set bits than it has loaded. Suppose that workers write a
//! word for ever: it has *m* set bits again and again, and more than *m* only until some time. Each
//! store of *m* bits follows a load of more bits, from before that time. Each worker has at most
//! one such load, so these stores end.
//!
//! All tables are zero between collections. Only the pages of a collection's scope are written, so
//! the cost of a young collection does not depend on the size of the heap.

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{AtomicU64, AtomicUsize, Ordering, fence};
use crate::collect::adjustments::Adjustments;
use crate::collect::scope::{Scope, Selection, granules_of};
use crate::collect::table::plainly;
use crate::heap::mark_tables::{BitWords, Bits, MarkTables, PAGE_WORDS, WORD};
use crate::heap::model::ObjectModel;
use crate::heap::mutator::World;
use crate::heap::remembered::FoundRoot;
use crate::memory::address_map::Index;
use crate::memory::space::PAGE_GRANULES;
use crate::object::live::ClaimRef;
use crate::object::state;
use crate::object::type_info::Object;

/// The candidates of one collection.
pub(crate) struct Candidates {
    tables: MarkTables,
    /// Workers that mark or have marked: a worker with a greater number has seen nothing.
    joined: AtomicUsize,
    /// The number of candidates.
    pub(crate) count: usize,
    /// The number of tracked objects on the pages of the scope.
    pub(crate) tracked: usize,
    /// The number of tables in `unseen` that this collection uses.
    workers: usize,
    /// The corrections of their counts. None before [`adjust`](Self::adjust).
    pub(crate) adjustments: Adjustments,
}

impl Candidates {
    /// Finds the candidates of the scope by their state bytes.
    pub(crate) fn new<M: ObjectModel>(
        world: &World<'_, M>,
        scope: &Scope,
        workers: usize,
    ) -> Result<Self, NoMemory> {
        let core = world.core();
        let pages = core.space.high_water();
        let mut tables = core.workers.take_mark_tables();
        tables.fit(pages, workers)?;
        let joined = AtomicUsize::new(1);
        let adjustments = Adjustments::default();
        let mut candidates = Self { tables, joined, count: 0, tracked: 0, workers, adjustments };
        candidates.find(world, scope);
        Ok(candidates)
    }

    /// Asks the model for the corrections of the counts of the unmarked candidates. Marked ones are
    /// not counted.
    pub(crate) fn adjust<M: ObjectModel>(&mut self, world: &World<'_, M>) -> Result<(), NoMemory> {
        self.adjustments = Adjustments::ask(world, |granule| self.is_unmarked(granule))?;
        Ok(())
    }

    /// Finds all candidates of the scope. None is marked. No other thread uses the tables.
    pub(crate) fn find<M: ObjectModel>(&mut self, world: &World<'_, M>, scope: &Scope) {
        let (count, tracked) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let share = scope.share(self.workers);
        world.share(self.workers, &|worker| {
            let mut found = (0, 0);
            for &page in share.of(worker).flatten() {
                steps::took(PAGE_WORDS);
                let (here, others) = self.find_on_page(world, scope, page);
                found = (found.0 + here, found.1 + here + others);
            }
            // Relaxed: the workers' return orders the sums before their use.
            count.fetch_add(found.0, Ordering::Relaxed);
            tracked.fetch_add(found.1, Ordering::Relaxed);
        });
        self.count = count.load(Ordering::Relaxed);
        self.tracked = tracked.load(Ordering::Relaxed);
    }

    /// Finds the candidates of a page. Returns their number, and the number of tracked objects that
    /// are too old. Only this worker accesses the page.
    fn find_on_page<M: ObjectModel>(
        &self,
        world: &World<'_, M>,
        scope: &Scope,
        page: u32,
    ) -> (usize, usize) {
        let space = &world.core().space;
        let Some(range) = granules_of(space, page) else { return (0, 0) };
        let (first, is_young) = (range.start % PAGE_GRANULES, scope.selection == Selection::Young);
        let (unmarked, mut count, mut tracked) = (self.tables.unmarked.page(page), 0, 0);
        let find = |states: &[u8]| {
            let mut set_word = |at: usize, bits: u64| {
                count += bits.count_ones() as usize;
                // Relaxed: the return of the workers orders the tables before their use.
                unmarked[at].store(bits, Ordering::Relaxed);
                for unseen in &self.tables.unseen[..self.workers] {
                    unseen.page(page)[at].store(bits, Ordering::Relaxed);
                }
            };
            if states.len() < PAGE_GRANULES {
                // The one object of a large page.
                let is_candidate = states.first().is_some_and(|&state| scope.contains(state));
                tracked += usize::from(states.first().is_some_and(|&s| state::is_candidate(s)));
                return set_word(first / WORD, u64::from(is_candidate) << (first % WORD));
            }
            for (at, states) in states.chunks(WORD).enumerate() {
                set_word(at, matching(states, scope.selection));
                if is_young {
                    tracked += matching(states, Selection::Full).count_ones() as usize;
                }
            }
        };
        // SAFETY: rule *stopped*: no thread changes a state byte of the scope before the sweep.
        unsafe { plainly(&space.states()[range], find) };
        // All tracked objects are candidates of a full collection: it counts them once.
        (count, tracked.saturating_sub(count))
    }

    /// The number of candidates that are not marked. No worker marks meanwhile.
    pub(crate) fn count_unmarked<M: ObjectModel>(
        &self,
        world: &World<'_, M>,
        scope: &Scope,
    ) -> usize {
        let count = AtomicUsize::new(0);
        let share = scope.share(self.workers);
        world.share(self.workers, &|worker| {
            let mut found = 0;
            for &page in share.of(worker).flatten() {
                steps::took(PAGE_WORDS);
                let words = self.tables.unmarked.page(page).iter();
                // Relaxed: no thread writes the tables.
                let bits = words.map(|word| word.load(Ordering::Relaxed).count_ones() as usize);
                found += bits.sum::<usize>();
            }
            // Relaxed: the workers' return orders the sums before their use.
            count.fetch_add(found, Ordering::Relaxed);
        });
        count.load(Ordering::Relaxed)
    }

    /// Zeroes the tables, and gives their memory back.
    pub(crate) fn close<M: ObjectModel>(self, world: &World<'_, M>, scope: &Scope) {
        let MarkTables { unmarked, unseen, assumed: _, queued } = &self.tables;
        for &page in scope.pages() {
            steps::took(1);
            // Relaxed: no other thread uses the tables, and the collector lock orders the next use.
            queued[page as usize].store(0, Ordering::Relaxed);
            for bits in unseen[..self.workers].iter().chain([unmarked]) {
                bits.page(page).iter().for_each(|word| word.store(0, Ordering::Relaxed));
            }
        }
        world.core().workers.give_mark_tables(self.tables);
    }

    /// Whether the candidate at a granule is not marked.
    #[inline(always)]
    pub(crate) fn is_unmarked(&self, granule: usize) -> bool {
        self.tables.unmarked.contains(granule)
    }

    /// Marks the candidate at a granule, while no worker marks. Returns `false` if no
    /// unmarked candidate is there.
    pub(crate) fn mark_alone(&self, granule: usize) -> bool {
        let is_unmarked = self.is_unmarked(granule);
        self.tables.unmarked.remove(granule);
        is_unmarked
    }

    /// Marks an unmarked candidate, while candidates are counted. Only this worker accesses its
    /// page.
    #[inline(always)]
    pub(crate) fn mark_counted(&self, granule: usize) {
        self.tables.unmarked.remove(granule);
    }

    /// Moves the claimed objects out that are no unmarked candidates. The others stay in order.
    /// Without memory none is moved.
    pub(crate) fn take_marked<M: ObjectModel>(
        &self,
        world: &World<'_, M>,
        objects: &mut Vec<ClaimRef>,
    ) -> Result<Vec<ClaimRef>, NoMemory> {
        let space = &world.core().space;
        let is_marked =
            |claim: &ClaimRef| !self.is_unmarked(space.granule(claim.object().address()));
        steps::took(objects.len());
        let mut taken = Vec::new();
        taken.try_reserve_exact(objects.iter().filter(|claim| is_marked(claim)).count())?;
        // Finalizers rarely save an object.
        if taken.capacity() > 0 {
            taken.extend(objects.extract_if(.., |claim| is_marked(claim)));
        }
        Ok(taken)
    }

    /// Removes the mark of a candidate, while no worker marks.
    pub(crate) fn unmark(&self, granule: usize) {
        self.tables.unmarked.insert(granule);
    }

    /// Marks the assumed roots, or removes their marks. No worker marks meanwhile.
    pub(crate) fn assume(
        &mut self,
        pages: usize,
        roots: &[FoundRoot],
        is_assumed: bool,
    ) -> Result<(), NoMemory> {
        self.tables.assumed.fit(pages)?;
        let assumed = &self.tables.assumed;
        steps::took(roots.len());
        for root in roots {
            let granule = root.granule as usize;
            if is_assumed { assumed.insert(granule) } else { assumed.remove(granule) }
        }
        Ok(())
    }

    /// Whether the object at a granule is an assumed root. There are some.
    #[inline(always)]
    pub(crate) fn is_assumed(&self, granule: usize) -> bool {
        self.tables.assumed.contains(granule)
    }

    /// The unmarked candidates of a page: for each word with some, its first granule and its bits.
    pub(crate) fn unmarked_on(&self, page: u32) -> impl Iterator<Item = (usize, u64)> {
        let first = page as usize * PAGE_GRANULES;
        let words = self.tables.unmarked.page(page).iter().enumerate();
        words.filter_map(move |(at, word)| {
            let bits = word.load(Ordering::Relaxed);
            (bits != 0).then_some((first + at * WORD, bits))
        })
    }

    /// Makes a candidate seen, as if worker 0 had met an edge to it, and its page queued, while no
    /// worker marks. Returns whether the page was not queued. Only this thread accesses the page.
    pub(crate) fn see_root(&self, granule: usize) -> bool {
        self.tables.unseen[0].remove(granule);
        let queued = &self.tables.queued[granule / PAGE_GRANULES];
        // Relaxed, both: the start of marking orders the tables before their use. No other thread
        // accesses the page's byte between the two.
        let is_queued = queued.load(Ordering::Relaxed) != 0;
        queued.store(1, Ordering::Relaxed);
        !is_queued
    }

    /// The marks of one worker.
    pub(crate) fn worker(&self, index: usize) -> WorkerMarks<'_> {
        // Relaxed: the fences order it. A worker that takes a page reads the number after the
        // fence, as it reads `unseen`.
        self.joined.fetch_max(index + 1, Ordering::Relaxed);
        WorkerMarks { candidates: self, own: &self.tables.unseen[index] }
    }
}

/// The accesses of one worker to the tables.
#[derive(Clone, Copy)]
pub(crate) struct WorkerMarks<'a> {
    candidates: &'a Candidates,
    own: &'a Bits,
}

impl<'a> WorkerMarks<'a> {
    /// Whether this worker has to look at an edge's target. Without a branch, because the answer
    /// cannot be predicted.
    #[inline(always)]
    pub(crate) fn is_unseen(&self, target: usize) -> bool {
        self.own.contains(target)
    }

    /// The address that `is_unseen` reads.
    #[inline(always)]
    pub(crate) fn entry(&self, target: usize) -> *const u8 {
        self.own.entry(target)
    }

    /// The table that [`is_unseen`](Self::is_unseen) reads.
    pub(crate) fn unseen(&self) -> BitWords<'a> {
        self.own.words()
    }

    /// Marks the candidates that edges lead to, and adds those that were not marked to a list. The
    /// targets stay unseen. `SHARED`: other workers mark, too, by *plain marks*, which the module's
    /// page describes.
    ///
    /// A function of its own: all that its loop needs is in registers.
    #[inline(never)]
    pub(crate) fn mark_all<const SHARED: bool>(
        &self,
        edges: &[usize],
        origin: impl Index,
        list: &mut Vec<Object>,
    ) -> Result<(), NoMemory> {
        let unmarked = self.candidates.tables.unmarked.words();
        let object = |edge| Object::new(origin.target(edge));
        if !SHARED {
            return fallible::extend_kept(list, edges.iter(), |&edge| {
                (object(edge), unmarked.take(origin.granule(edge)))
            });
        }
        let spare = AtomicU64::new(0);
        fallible::extend_kept(list, edges.iter(), |&edge| {
            (object(edge), unmarked.take_plainly(origin.granule(edge), &spare))
        })
    }

    /// Removes a mark, as a worker does that has loaded the word before the mark.
    pub(crate) fn lose_mark(&self, target: usize) {
        self.candidates.unmark(target);
    }

    /// Makes candidates of one word of the tables seen. Returns those that this worker had not
    /// seen, and that were not marked a moment ago. None of them is an assumed root: an assumed
    /// root stays unseen, so that each edge to it is met.
    #[inline(always)]
    pub(crate) fn see(&self, word: usize, bits: u64) -> u64 {
        let new = self.own.take_bits(word, bits);
        new & self.candidates.tables.unmarked.bits(word)
    }

    /// Whether the target of an edge is marked, or is no candidate.
    #[inline(always)]
    pub(crate) fn is_marked(&self, target: usize) -> bool {
        !self.candidates.is_unmarked(target)
    }

    /// Whether the target of an edge is an assumed root. There are some.
    #[inline(always)]
    pub(crate) fn is_assumed(&self, target: usize) -> bool {
        self.candidates.is_assumed(target)
    }

    /// Marks one candidate. Returns `false` if another worker has marked it.
    #[inline(always)]
    pub(crate) fn mark<const SHARED: bool>(&self, target: usize) -> bool {
        let (word, bit) = (&self.candidates.tables.unmarked.word(target), 1 << (target % WORD));
        mark_bits::<SHARED>(word, bit) != 0
    }

    /// Comes between the candidates that this worker has seen and the queueing of their pages.
    #[inline(always)]
    pub(crate) fn before_queueing<const SHARED: bool>() {
        if SHARED {
            fence(Ordering::SeqCst);
        }
    }

    /// Makes a page queued. Returns `false` if it is in a queue.
    #[inline(always)]
    pub(crate) fn queue<const SHARED: bool>(&self, page: usize) -> bool {
        let queued = &self.candidates.tables.queued[page];
        // Relaxed, here and in `mark_page`: the fences order the flag and `unseen`.
        if queued.load(Ordering::Relaxed) != 0 {
            return false;
        }
        if SHARED {
            return queued.swap(1, Ordering::Relaxed) == 0;
        }
        queued.store(1, Ordering::Relaxed);
        true
    }

    /// Marks the seen candidates of a page that was in a queue. Calls `f` with each word's first
    /// granule and the bits of the marked candidates.
    #[inline(always)]
    pub(crate) fn mark_page<const SHARED: bool>(&self, page: u32, mut f: impl FnMut(usize, u64)) {
        let MarkTables { unmarked, unseen, queued, .. } = &self.candidates.tables;
        queued[page as usize].store(0, Ordering::Relaxed);
        let mut workers = 1;
        if SHARED {
            fence(Ordering::SeqCst);
            workers = self.candidates.joined.load(Ordering::Relaxed);
        }
        let (own, first) = (unseen[0].page(page), page as usize * PAGE_GRANULES);
        for (at, word) in unmarked.page(page).iter().enumerate() {
            // Relaxed: a candidate that is unmarked here may be marked meanwhile. `mark_bits`
            // decides.
            let is_unmarked = word.load(Ordering::Relaxed);
            if is_unmarked == 0 {
                continue;
            }
            let mut not_seen = own[at].load(Ordering::Relaxed);
            for unseen in &unseen[1..workers] {
                not_seen &= unseen.page(page)[at].load(Ordering::Relaxed);
            }
            let wanted = is_unmarked & !not_seen;
            if wanted != 0 {
                let marked = mark_bits::<SHARED>(word, wanted);
                f(first + at * WORD, marked);
            }
        }
    }
}

/// Clears `bits` of a word of `unmarked`. Returns those that this worker has cleared.
#[inline(always)]
fn mark_bits<const SHARED: bool>(word: &AtomicU64, bits: u64) -> u64 {
    // Relaxed: the atomicity of the change decides which worker marks a candidate. The objects do
    // not change in a stop.
    if SHARED {
        if word.load(Ordering::Relaxed) & bits == 0 {
            // Without a write: the workers would move the cache line to and fro.
            return 0;
        }
        return word.fetch_and(!bits, Ordering::Relaxed) & bits;
    }
    let before = word.load(Ordering::Relaxed);
    word.store(before & !bits, Ordering::Relaxed);
    before & bits
}

/// The bits of the selected states. At most 64 states.
#[inline(always)]
fn matching(states: &[u8], selection: Selection) -> u64 {
    let (mask, value) = selection.bits();
    let (words, rest) = states.as_chunks::<8>();
    let bits = |word: u64| {
        // Eight bytes at a time. The multiplication moves the highest bits of all bytes into the
        // highest byte.
        let found = equal(word & (ONES * u64::from(mask)), ONES * u64::from(value));
        (found >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    };
    let mut all = 0;
    for (at, &word) in words.iter().enumerate() {
        all |= bits(u64::from_le_bytes(word)) << (8 * at);
    }
    for (at, &state) in rest.iter().enumerate() {
        all |= u64::from(state & mask == value) << (8 * words.len() + at);
    }
    all
}

/// A one in each of eight bytes.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The highest bit of each byte that is equal in both words.
#[inline(always)]
pub(crate) fn equal(one: u64, other: u64) -> u64 {
    const LOW: u64 = 0x7f * ONES;
    let differs = one ^ other;
    // A byte is 0 if its highest bit is clear and adding 0x7f to its low bits does not set it.
    !(((differs & LOW) + LOW) | differs | LOW)
}

/// The bits of the bytes that are not 0. At most 64 bytes.
#[inline(always)]
pub(crate) fn not_zero(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut all = 0;
    for (at, &word) in words.iter().enumerate() {
        let zero = (equal(u64::from_le_bytes(word), 0) >> 7).wrapping_mul(0x0102_0408_1020_4080);
        all |= (!(zero >> 56) & 0xff) << (8 * at);
    }
    for (at, &byte) in rest.iter().enumerate() {
        all |= u64::from(byte != 0) << (8 * words.len() + at);
    }
    all
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::base::event::CollectionKind;
    use crate::collect::scope::object_at;
    use crate::collect::scope::tests::{granules, stopped};
    use crate::heap::mark_tables::each_bit;
    use crate::memory::reserved::Reserved;
    use crate::memory::space::Space;
    use crate::object::state::{DYING, FROZEN, FULL, LIVE, OLD, StateByte, TRACKED, UNREACHABLE};

    /// Bytes of all kinds, at all places.
    fn each_row(test: impl Fn(&[u8])) {
        let some = [
            0,
            TRACKED,
            LIVE | TRACKED,
            LIVE | TRACKED | OLD,
            FROZEN | TRACKED,
            UNREACHABLE | TRACKED,
            DYING,
            128,
            255,
        ];
        for len in (0..=17).chain([63, 64]) {
            for start in 0..some.len() {
                let bytes: Vec<u8> =
                    (0..len).map(|at| some[(start + at * 5) % some.len()]).collect();
                test(&bytes);
            }
        }
    }

    #[test]
    fn bytes_are_matched_one_by_one() {
        each_row(|bytes| {
            let bits = |is: &dyn Fn(u8) -> bool| {
                bytes.iter().enumerate().fold(0, |all, (at, &b)| all | u64::from(is(b)) << at)
            };
            for (selection, mask, value) in [
                (Selection::Full, FULL, TRACKED),
                (Selection::Young, FULL | OLD, TRACKED),
                (Selection::Claimed, TRACKED | UNREACHABLE, TRACKED | UNREACHABLE),
            ] {
                let expected = bits(&|b| b & mask == value);
                assert_eq!(matching(bytes, selection), expected, "{selection:?} {bytes:?}");
            }
            assert_eq!(not_zero(bytes), bits(&|b| b != 0), "{bytes:?}");
        });
    }

    fn unmarked(candidates: &Candidates, scope: &Scope) -> Vec<usize> {
        let mut found = Vec::new();
        for &page in scope.pages() {
            for (first, bits) in candidates.unmarked_on(page) {
                each_bit(first, bits, |granule| found.push(granule));
            }
        }
        found
    }

    /// Both kinds of collections, with small pages and a large one.
    #[test]
    fn candidates_are_found_by_their_states_and_the_others_counted() {
        stopped(|world, full| {
            let space = &world.core().space;
            let states = space.states();
            let own: Vec<usize> = granules(world, full)
                .into_iter()
                .filter(|&at| StateByte(&states[at]).get() & TRACKED != 0)
                .collect();
            let change = |at: usize| [0, OLD, FROZEN, 0, DYING, OLD][at % 6];
            own.iter().enumerate().for_each(|(at, &granule)| {
                StateByte(&states[granule]).set(change(at));
            });
            let large = StateByte(&states[*own.last().expect("the large object is the last one")]);
            let young = Scope::new(space, CollectionKind::Young).expect("memory");
            let scopes = [(full, 1), (full, 3), (&young, 1), (&young, 3)];
            for (age, (scope, workers)) in
                [0, OLD].into_iter().flat_map(|age| scopes.map(|s| (age, s)))
            {
                large.change_plainly(age, OLD | FROZEN | DYING);
                let candidates = Candidates::new(world, scope, workers).expect("memory");
                let is = |granule: &&usize| scope.contains(StateByte(&states[**granule]).get());
                let expected: Vec<usize> = own.iter().filter(is).copied().collect();
                assert_eq!(unmarked(&candidates, scope), expected);
                let tracked = own
                    .iter()
                    .filter(|&&granule| state::is_candidate(StateByte(&states[granule]).get()));
                let sums = (candidates.count, candidates.tracked);
                assert_eq!(sums, (expected.len(), tracked.count()));
                candidates.close(world, scope);
            }
            for &granule in &own {
                StateByte(&states[granule]).change_plainly(0, FROZEN | DYING);
            }
        });
    }

    #[test]
    fn tables_are_zero_when_they_come_back() {
        stopped(|world, scope| {
            let pages = world.core().space.high_water();
            for workers in [3, 1, 2] {
                let mut candidates = Candidates::new(world, scope, workers).expect("memory");
                let all = unmarked(&candidates, scope);
                let roots = [FoundRoot { granule: all[3] as u32, inside: 0 }];
                candidates.assume(pages, &roots, true).expect("memory");
                assert!(candidates.is_assumed(all[3]) && !candidates.is_assumed(all[4]));
                candidates.assume(pages, &roots, false).expect("memory");
                assert!(candidates.see_root(all[0]), "the first on its page");
                assert!(!candidates.see_root(all[1]), "the page is queued");
                assert!(candidates.mark_alone(all[2]) && !candidates.mark_alone(all[2]));
                candidates.close(world, scope);
                let tables = world.core().workers.take_mark_tables();
                assert!(tables.are_zero(), "{workers} workers");
                assert_eq!(tables.unseen.len(), 3, "the tables of more workers are kept");
                world.core().workers.give_mark_tables(tables);
            }
        });
    }

    /// For one worker and for several.
    #[test]
    fn an_edge_leads_to_something_new_once() {
        fn check<const SHARED: bool>(
            space: &Space<Reserved>,
            candidates: &Candidates,
            all: &[usize],
        ) {
            let marks = candidates.worker(0);
            let bit = |target: usize| 1 << (target % WORD);
            let see = |target: usize| marks.see(target / WORD, bit(target)) != 0;
            let [one, two, three] = [all[0], all[1], all[2]];
            assert!(see(one));
            assert!(!see(one), "seen");
            assert!(marks.mark::<SHARED>(one));
            assert!(!marks.mark::<SHARED>(one));
            assert!(candidates.mark_alone(two));
            assert!(!see(two), "marked by another worker");
            assert!(!marks.is_unseen(two));
            assert!(marks.is_assumed(three) && !marks.is_assumed(two));
            // A page: only the seen and unmarked objects are marked, in the order of memory.
            // Several candidates of a word are seen at once.
            for &at in [all[9], all[5], all[7]].iter() {
                assert!(see(at));
            }
            let alike = |&&at: &&usize| at / WORD == all[20] / WORD;
            let bits = all[15..].iter().filter(alike).fold(0, |bits, &at| bits | bit(at));
            assert!(candidates.mark_alone(all[20]));
            assert_eq!(marks.see(all[20] / WORD, bits), bits & !bit(all[20]));
            assert_eq!(marks.see(all[20] / WORD, bits), 0);
            let page = all[5] / PAGE_GRANULES;
            assert!(marks.queue::<SHARED>(page) && !marks.queue::<SHARED>(page));
            let mut marked = Vec::new();
            for _ in 0..2 {
                marks.mark_page::<SHARED>(page as u32, |first, bits| {
                    each_bit(first, bits, |granule| marked.push(granule));
                });
            }
            let together = all[15..].iter().filter(alike).filter(|&&at| at != all[20]);
            let together: Vec<usize> = together.copied().collect();
            assert!(together.len() > 1);
            assert_eq!(marked, [&[all[5], all[7], all[9]][..], &together].concat());
            assert!(marks.queue::<SHARED>(page), "it was taken");
            // Marked at once: each candidate once. It stays unseen. An edge to it is known later.
            let [new, old] = [all[11], all[12]];
            assert!(candidates.mark_alone(old));
            let mut list = Vec::new();
            let edges = [new, old, new, 0].map(|granule| space.address(granule));
            marks.mark_all::<SHARED>(&edges, space.origin(), &mut list).expect("memory");
            assert_eq!(list, [object_at(space, new)]);
            assert!(!candidates.is_unmarked(new) && marks.is_unseen(new));
            assert!(!see(new));
            assert!(candidates.is_unmarked(all[14]), "of the same word");
            marks.lose_mark(old);
            assert!(candidates.is_unmarked(old));
        }
        stopped(|world, scope| {
            let space = &world.core().space;
            let pages = space.high_water();
            for is_shared in [false, true] {
                let mut candidates = Candidates::new(world, scope, 2).expect("memory");
                let all = unmarked(&candidates, scope);
                let roots = [FoundRoot { granule: all[2] as u32, inside: 0 }];
                candidates.assume(pages, &roots, true).expect("memory");
                assert_eq!(candidates.count_unmarked(world, scope), all.len());
                if is_shared {
                    check::<true>(space, &candidates, &all);
                } else {
                    check::<false>(space, &candidates, &all);
                }
                let unmarked = unmarked(&candidates, scope).len();
                assert_eq!(candidates.count_unmarked(world, scope), unmarked);
                candidates.assume(pages, &roots, false).expect("memory");
                candidates.close(world, scope);
            }
        });
    }
}
