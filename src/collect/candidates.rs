//! The candidates of a collection, and the marks of its workers.
//!
//! Each table has one bit for each granule:
//!
//! | table | its bit is set | while marking, written by |
//! |---|---|---|
//! | `unmarked` | for a candidate that no worker has marked | the worker that marks the candidate |
//! | `assumed` | for an [assumed root](super::assumed), which keeps its bit in `unmarked` | no thread |
//!
//! Counting also marks an outside candidate that refers to nothing. It needs no atomic operation
//! for that, because the worker that counts a page is the only one that accesses its words then.
//!
//! A worker that meets an edge to an unmarked candidate marks the candidate and adds it to its
//! list, so that one worker traverses it, once. For example, A and B both refer to C, one worker
//! traverses A, and another one B. Both find C unmarked, and one of them must get it. So with
//! several workers the mark is a `fetch_and`, because its old word tells which worker came first.
//! With one worker it is a load and a store. After marking, the unmarked candidates are the
//! unreachable ones, although no step of marking has written a state byte.
//!
//! # Plain marks
//!
//! A `fetch_and` takes long if another processor has written the word. So before counting, if the
//! model allows it ([`ObjectModel::OVERLAPPING_TRAVERSALS`]), several workers mark as a single one
//! does, with loads and stores. If two workers write one word at the same time, two things can
//! happen:
//!
//! * *An object is traversed twice*: both workers load its bit before one of them stores. So the
//!   number of traversals is not the number of marked candidates, which are counted afterwards.
//! * *A mark is lost*: a worker stores a word that it has loaded before the mark.
//!
//! No object is lost with its mark, because an object without a mark is counted. If a marked object
//! refers to it by a counted reference, counting finds no candidate with this reference, so the
//! object is a root. If an unmarked object refers to it, that object is a root or can be reached
//! from one, for the same reason. Uncounted references and reported roots show in no count, so
//! their targets are marked again when no worker marks.
//!
//! Marking ends, because a worker stores fewer set bits than it has loaded. Suppose that workers
//! write a word for ever, so that it has *m* set bits again and again, and more than *m* only until
//! some time. Each store of *m* bits follows a load of more bits, from before that time. Each
//! worker has at most one such load, so these stores end.
//!
//! All tables are zero between collections, and only the pages of a collection's scope are written.
//! So the cost of a young collection does not depend on the size of the heap.

use crate::base::fallible::{self, NoMemory};
use crate::base::steps;
use crate::base::sync::{AtomicUsize, Ordering};
use crate::collect::listing::Adjustments;
use crate::collect::scope::{Scope, Selection, granules_of, plainly};
use crate::heap::mark_tables::{FoundRoot, MarkTables, PAGE_WORDS, WORD};
use crate::heap::model::ObjectModel;
use crate::heap::world::World;
use crate::memory::address_map::Index;
use crate::memory::shape::PAGE_GRANULES;
use crate::object::address::Object;
use crate::object::live::ClaimRef;
use crate::object::state;

pub(crate) struct Candidates {
    tables: MarkTables,
    pub(crate) count: usize,
    /// The number of tracked objects on the pages of the scope.
    pub(crate) tracked: usize,
    workers: usize,
    /// The corrections of their counts, which are empty before [`adjust`](Self::adjust).
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
        tables.unmarked.fit(pages)?;
        let adjustments = Adjustments::default();
        let mut candidates = Self { tables, count: 0, tracked: 0, workers, adjustments };
        candidates.find(world, scope);
        Ok(candidates)
    }

    /// Asks the model for the corrections of the counts of the unmarked candidates, because marked
    /// ones are not counted.
    pub(crate) fn adjust<M: ObjectModel>(&mut self, world: &World<'_, M>) -> Result<(), NoMemory> {
        self.adjustments = Adjustments::ask(world, |granule| self.is_unmarked(granule))?;
        Ok(())
    }

    /// Finds all candidates of the scope, of which none is marked. No other thread uses the tables.
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

    /// Finds the candidates of a page, which only this worker accesses. Returns their number, and
    /// the number of tracked objects that are too old.
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
            };
            if states.len() < PAGE_GRANULES {
                // A large page has only one object.
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
        // All tracked objects are candidates of a full collection, so it counts them once.
        (count, tracked.saturating_sub(count))
    }

    /// The number of candidates that are not marked, while no worker marks.
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

    /// Zeroes the tables, and gives their memory back for the next collection.
    pub(crate) fn close<M: ObjectModel>(self, world: &World<'_, M>, scope: &Scope) {
        for &page in scope.pages() {
            steps::took(1);
            // Relaxed: no other thread uses the tables, and the collector lock orders the next use.
            let MarkTables { unmarked, assumed, .. } = &self.tables;
            unmarked.page(page).iter().for_each(|word| word.store(0, Ordering::Relaxed));
            debug_assert!(assumed.is_zero(page), "an assumption that has not ended");
        }
        world.core().workers.give_mark_tables(self.tables);
    }

    /// Whether the candidate at a granule is not marked.
    #[inline(always)]
    pub(crate) fn is_unmarked(&self, granule: usize) -> bool {
        self.tables.unmarked.contains(granule)
    }

    /// Marks the candidate at a granule, while no worker marks. Returns `false` if no unmarked
    /// candidate is there.
    pub(crate) fn mark_alone(&self, granule: usize) -> bool {
        let is_unmarked = self.is_unmarked(granule);
        self.tables.unmarked.remove(granule);
        is_unmarked
    }

    /// Marks an unmarked candidate while candidates are counted, or a root. Only this worker
    /// accesses its page.
    #[inline(always)]
    pub(crate) fn mark_on_page(&self, granule: usize) {
        self.tables.unmarked.remove(granule);
    }

    /// Moves the claimed objects out that are no unmarked candidates, and keeps the others in
    /// order. Without memory none is moved.
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
        // Finalizers rarely save an object, so mostly the second pass is spared.
        if taken.capacity() > 0 {
            taken.extend(objects.extract_if(.., |claim| is_marked(claim)));
        }
        Ok(taken)
    }

    /// Removes the mark of a candidate, while no worker marks.
    pub(crate) fn unmark(&self, granule: usize) {
        self.tables.unmarked.insert(granule);
    }

    /// Begins or ends an assumption, while no worker marks. While it lasts, the assumed roots are
    /// not marked, so that each edge to them is met, and afterwards they are.
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
            if is_assumed {
                assumed.insert(granule);
            } else {
                assumed.remove(granule);
                self.tables.unmarked.remove(granule);
            }
        }
        Ok(())
    }

    /// Whether the object at a granule is an assumed root. The caller knows that there are some.
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

    /// Marks the candidates that edges lead to, and adds those that were not marked to `list`. If
    /// there are assumed roots, adds an entry to `to_assumed` for each edge to one. These roots
    /// keep their bits, so that the first loop finds the edges to them without a second table.
    /// `exactly`: other workers mark, and each candidate must be in one list.
    ///
    /// The first loop only reads, because most targets are marked. A loop that also wrote would
    /// wait for the store buffer at each word that is not in the caches. It would also move cache
    /// lines between the workers. `met` is the memory of the edges that it keeps.
    ///
    /// It is not inlined, so that all that its loops need is in registers.
    #[inline(never)]
    pub(crate) fn mark_all(
        &self,
        exactly: bool,
        edges: &[usize],
        origin: impl Index,
        to_assumed: Option<&mut Vec<u32>>,
        met: &mut Vec<usize>,
        list: &mut Vec<Object>,
    ) -> Result<(), NoMemory> {
        let (unmarked, assumed) = (self.tables.unmarked.words(), self.tables.assumed.words());
        let granule = |edge: &usize| origin.granule(*edge);
        met.clear();
        fallible::extend_kept(met, edges.iter(), |edge| (*edge, unmarked.bit(granule(edge))))?;
        if let Some(to_assumed) = to_assumed {
            fallible::extend_kept(to_assumed, met.iter(), |edge| {
                (granule(edge) as u32, assumed.bit(granule(edge)))
            })?;
            if !to_assumed.is_empty() {
                met.retain(|edge| assumed.bit(granule(edge)) == 0);
            }
        }
        let object = |edge: &usize| Object::new(origin.target(*edge));
        if exactly {
            fallible::extend_kept(list, met.iter(), |edge| {
                (object(edge), unmarked.take_exactly(granule(edge)))
            })
        } else {
            fallible::extend_kept(list, met.iter(), |edge| {
                (object(edge), unmarked.take(granule(edge)))
            })
        }
    }

    /// The memory of a worker's list, which is empty.
    pub(crate) fn take_list(&self) -> Vec<Object> {
        self.tables.lists.lock().pop().unwrap_or_default()
    }

    /// Keeps the memory of a worker's list for the next worker.
    pub(crate) fn keep_list(&self, mut list: Vec<Object>) {
        list.clear();
        let mut lists = self.tables.lists.lock();
        // Without memory for its place, the list is freed instead.
        if lists.try_reserve(1).is_ok() {
            lists.push(list);
        }
    }
}

/// The bits of the selected ones of at most 64 states.
#[inline(always)]
pub(super) fn matching(states: &[u8], selection: Selection) -> u64 {
    let (mask, value) = selection.bits();
    let (words, rest) = states.as_chunks::<8>();
    let bits = |word: u64| {
        // The multiplication moves the highest bits of all eight bytes into the highest byte.
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

const ONES: u64 = 0x0101_0101_0101_0101;

/// The highest bit of each byte that is equal in both words.
#[inline(always)]
pub(crate) fn equal(one: u64, other: u64) -> u64 {
    const LOW: u64 = 0x7f * ONES;
    let differs = one ^ other;
    // A byte is 0 if its highest bit is clear and adding 0x7f to its low bits does not set it.
    !(((differs & LOW) + LOW) | differs | LOW)
}

/// The bits of those of at most 64 bytes that are not 0.
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
mod tests;
