use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::memory::range::{is_in_any_heap, word_at};
use crate::memory::space::SpaceConfig;
use crate::object::tracer::Tracer;
use crate::{Gc, GcCell, Trace};

struct Leaf;

impl Trace for Leaf {
    fn traverse(_: &Self, _: &mut Tracer) {}
}

fn space(reserve: usize) -> Space<Segments> {
    Space::open(SpaceConfig { reserve: Some(reserve), limit: None }).expect("address space")
}

/// Memory that a heap can adopt.
struct Memory(NonNull<u8>, Layout);

impl Memory {
    fn new(units: usize) -> Self {
        let layout = Layout::from_size_align(units * UNIT, UNIT).expect("a layout");
        // SAFETY: rule *bounds*: the layout is not empty.
        Self(NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory"), layout)
    }

    fn addr(&self) -> usize {
        self.0.as_ptr().addr()
    }

    fn adopt(&self, space: &Space<Segments>) -> Result<(), AdoptError> {
        // SAFETY: rule *adopted*: the tests drop the memory after the space.
        unsafe { space.adopt_memory(self.0, self.1.size(), true) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: rule *bounds*: allocated with this layout.
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}

fn is_unknown(space: &Space<Segments>, addr: usize) -> bool {
    !space.contains(addr) && space.page_index(addr) == 0 && !space.starts_at(addr)
}

/// Whether a tracer of the heap keeps an address.
fn is_inside(space: &Space<Segments>, addr: usize) -> bool {
    let (start, bytes) = space.bounds();
    addr.wrapping_sub(start) < bytes
}

/// The word of a cell outside of heaps names the heap that has read it. The bounds of segments
/// cannot be that name: another heap with segments would take the cell for its own.
#[test]
fn a_tracer_of_segments_reads_no_cell_outside_of_heaps() {
    let (start, bytes) = space(64 << 20).bounds();
    let cell: GcCell<Option<Gc<Leaf>>> = GcCell::default();
    for _ in 0..2 {
        let mut tracer = Tracer::for_collection(start, bytes);
        Trace::traverse(&cell, &mut tracer);
        assert!(tracer.take_unreadable() && tracer.edges().is_empty());
    }
    let heap = crate::Heap::new();
    cell.set(&heap.attach(), None);
}

#[test]
fn the_first_and_the_last_byte_of_each_unit() {
    let memory = Memory::new(3);
    let space = space(64 << 20);
    memory.adopt(&space).expect("room");
    let first = memory.addr();
    for unit in 0..3 {
        for offset in [0, 1, 31, 32, 4096, UNIT - 33, UNIT - 1] {
            let addr = first + unit * UNIT + offset;
            let granule = space.granule(addr);
            assert!(space.contains(addr) && granule != 0);
            assert_eq!(space.address(granule), addr / GRANULE * GRANULE);
            // SAFETY: rule *mapped*: a granule of the space.
            assert_eq!(unsafe { space.cell(granule) }.as_ptr().addr(), space.address(granule));
            assert_eq!(space.page_index(addr), granule / PAGE_GRANULES);
            let start = space.page_start(space.page_index(addr) as u32).as_ptr().addr();
            assert_eq!(start, addr / PAGE_SIZE * PAGE_SIZE);
            assert_eq!(space.starts_at(addr), addr.is_multiple_of(GRANULE));
            assert_eq!(space.origin().granule(addr), granule);
        }
        // The granules of a unit follow those of the unit before.
        let expected = space.granule(first) + unit * UNIT / GRANULE;
        assert_eq!(space.granule(first + unit * UNIT), expected);
    }
    assert!(is_unknown(&space, first - 1) && is_unknown(&space, first + 3 * UNIT));
}

#[test]
fn addresses_of_no_heap_have_granules_of_unit_0() {
    let memory = Memory::new(1);
    let space = space(64 << 20);
    let on_the_stack = 0u8;
    let addr = memory.addr();
    assert!(is_unknown(&space, addr), "it is not adopted yet");
    memory.adopt(&space).expect("room");
    for unknown in [
        0,
        1,
        NOWHERE,
        UNIT - 1,
        UNIT,
        (&raw const on_the_stack).addr(),
        1 << 47,
        (1 << 48) - 1,
        1 << 48,
        // The same address, with bits above those that the tables know.
        addr | 1 << 48,
        addr | 1 << 63,
        addr | 0xffff << 48,
        usize::MAX,
        usize::MAX - UNIT,
    ] {
        assert!(is_unknown(&space, unknown), "{unknown:#x}");
        let is_kept = (UNIT..(1 << 48)).contains(&unknown);
        assert_eq!(is_inside(&space, unknown), is_kept, "{unknown:#x}: what a tracer keeps");
    }
    // The granule itself has an address, which is unknown as well.
    assert_eq!((space.address(0), space.page_index(space.address(0))), (NOWHERE, 0));
    assert_eq!(space.page(0).shape().kind(), PageKind::Nowhere);
    assert_eq!(space.starts(0).len(), 0);
    // It is accessible for counting.
    assert!(space.counts().len() >= UNIT / GRANULE && space.states().len() >= UNIT / GRANULE);
}

#[test]
fn what_cannot_be_adopted() {
    let memory = Memory::new(4);
    let (space, other) = (space(16 << 20), self::space(16 << 20));
    let adopt = |space: &Space<Segments>, from: usize, bytes: usize| {
        let start = memory.0.map_addr(|addr| addr.saturating_add(from));
        // SAFETY: rule *adopted*: memory of this test, or refused.
        unsafe { space.adopt_memory(start, bytes, true) }
    };
    let at = |from: usize| memory.addr() + from;
    for (from, bytes) in [(0, 0), (0, UNIT - 1), (0, UNIT + 4096), (4096, UNIT)] {
        let error = AdoptError::Unaligned { start: at(from), bytes };
        assert_eq!(adopt(&space, from, bytes), Err(error));
    }
    let mark = space.high_water();
    assert_eq!(adopt(&space, UNIT, 2 * UNIT), Ok(()));
    assert_eq!(space.high_water(), mark + 2);
    for (from, bytes) in [(0, 2 * UNIT), (UNIT, UNIT), (2 * UNIT, 2 * UNIT), (0, 4 * UNIT)] {
        let taken = AdoptError::Taken { start: at(from), bytes };
        assert_eq!(adopt(&space, from, bytes), Err(taken), "by the same heap");
        assert_eq!(adopt(&other, from, bytes), Err(taken), "by another heap");
    }
    assert_eq!((adopt(&space, 0, UNIT), adopt(&other, 3 * UNIT, UNIT)), (Ok(()), Ok(())));
    // More than there are tables for, and addresses that the directory does not know.
    let full = Err(AdoptError::Full { reserved: space.length });
    for (start, bytes) in [(1 << 40, space.length), (1 << 48, UNIT), (usize::MAX - UNIT + 1, UNIT)]
    {
        let start = NonNull::new(std::ptr::without_provenance_mut(start)).expect("an address");
        // SAFETY: rule *adopted*: it is refused.
        assert_eq!(unsafe { space.adopt_memory(start, bytes, true) }, full);
    }
}

/// Opens units at an address where no memory is. No test accesses it.
fn open_at(space: &Space<Segments>, start: usize, units: usize) -> Result<usize, AdoptError> {
    let mut pool = space.pool.lock();
    let start = NonNull::new(std::ptr::without_provenance_mut(start)).expect("an address");
    let page = space.high_water();
    space.table.adopt_units(&mut pool, start, units, true).map(|()| page)
}

#[test]
fn a_heap_whose_leaves_are_used_up_refuses_other_blocks() {
    let space = space(64 << 20);
    let block = |number: usize| (40_000 + number) << BLOCK_SHIFT;
    let most = space.map.most_leaves - 1;
    for number in 0..most {
        open_at(&space, block(number), 1).expect("a leaf");
    }
    let before = space.high_water();
    assert_eq!(open_at(&space, block(most), 1), Err(AdoptError::Full { reserved: space.length }));
    assert!(is_unknown(&space, block(most)));
    assert!(!is_in_any_heap(block(most)));
    assert_eq!(space.high_water(), before);
    // The blocks with a leaf still have room.
    open_at(&space, block(3) + 7 * UNIT, 2).expect("no leaf");
    assert!(space.contains(block(3) + 8 * UNIT) && is_unknown(&space, block(3) + UNIT));
}

#[derive(Clone, Debug)]
enum Action {
    /// Opens units: a place in the address space, and how many.
    Open(usize, usize),
    /// Asks for an address.
    Ask(usize),
    /// Asks for an address near the start or the end of an open segment.
    Near(prop::sample::Index, bool, isize),
}

fn action() -> impl Strategy<Value = Action> {
    let unit = 1usize..1 << (48 - UNIT_SHIFT);
    // Dense places, so that segments meet.
    let near = (0usize..64).prop_map(|at| (0x7f12 << (BLOCK_SHIFT - UNIT_SHIFT)) + at);
    prop_oneof![
        (prop_oneof![unit, near], 1usize..40).prop_map(|(unit, len)| Action::Open(unit, len)),
        any::<usize>().prop_map(Action::Ask),
        (any::<prop::sample::Index>(), any::<bool>(), -70_000isize..70_000)
            .prop_map(|(which, end, by)| Action::Near(which, end, by)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The map of two levels answers as an ordered map of segments does.
    #[test]
    fn the_map_is_an_ordered_map_of_segments(
        actions in prop::collection::vec(action(), 1..120),
    ) {
        // Small numbers of other tests' ranges lie elsewhere.
        let space = space(32 << 30);
        // By start: the length, and the first granule.
        let mut model = BTreeMap::<usize, (usize, usize)>::new();
        for action in actions {
            let asked = match action {
                Action::Open(unit, units) => {
                    let (start, length) = (unit << UNIT_SHIFT, units * UNIT);
                    let before = model.range(..start + length).next_back();
                    let overlaps = before.is_some_and(|(&at, &(length, _))| at + length > start);
                    let is_in_reach = (start + length - 1) >> BLOCK_SHIFT < BLOCKS;
                    if !is_in_reach {
                        continue;
                    }
                    match open_at(&space, start, units) {
                        Ok(page) => {
                            prop_assert!(!overlaps);
                            model.insert(start, (length, page * PAGE_GRANULES));
                        }
                        // Also if a real mapping of this process lies there.
                        Err(error) => {
                            let is_taken = matches!(error, AdoptError::Taken { .. });
                            prop_assert!(overlaps || is_taken);
                        }
                    }
                    start
                }
                Action::Ask(addr) => addr,
                Action::Near(which, end, by) => {
                    let Some(at) = model.len().checked_sub(1).map(|last| which.index(last + 1))
                    else { continue };
                    let (&start, &(length, _)) = model.iter().nth(at).expect("a segment");
                    (start + if end { length } else { 0 }).wrapping_add_signed(by)
                }
            };
            let segment = model.range(..=asked).next_back();
            let inside = segment.filter(|&(&start, &(length, _))| asked - start < length);
            let expected = inside.map(|(&start, &(_, first))| first + (asked - start) / GRANULE);
            let outside = asked % UNIT / GRANULE;
            prop_assert_eq!(space.granule(asked), expected.unwrap_or(outside));
            if is_inside(&space, asked) {
                prop_assert_eq!(space.origin().granule(asked), expected.unwrap_or(outside));
            }
            prop_assert_eq!(space.contains(asked), expected.is_some());
            if let Some(granule) = expected {
                prop_assert_eq!(space.address(granule), asked / GRANULE * GRANULE);
            }
        }
    }

    /// Each object comes back from its granule, whatever was there before, and none changes the
    /// place of another.
    #[test]
    fn an_object_comes_back_from_its_granule(
        steps in prop::collection::vec((0usize..500, any::<bool>(), any::<bool>()), 1..300),
        first in prop_oneof![Just(0), Just(UNIT - 250 * GRANULE)],
    ) {
        let memory = Memory::new(2);
        let space = space(64 << 20);
        memory.adopt(&space).expect("room");
        let directory = space.origin();
        // By granule of the memory: the half in which an object starts.
        let mut model = BTreeMap::<usize, usize>::new();
        for (at, second, alone) in steps {
            let address = memory.addr() + first + at * GRANULE + if second { HALF } else { 0 };
            let granule = space.granule(address);
            if alone {
                directory.set_half_alone(granule, address);
            } else {
                space.set_half(address);
            }
            model.insert(at, address);
            for (&at, &address) in &model {
                let granule = space.granule(address);
                prop_assert_eq!(granule, space.granule(memory.addr() + first + at * GRANULE));
                prop_assert_eq!(space.address(granule), address);
                // SAFETY: rule *mapped*: a granule of the space.
                prop_assert_eq!(unsafe { directory.cell(granule) }.as_ptr().addr(), address);
                // SAFETY: rule *mapped*: a word of the space.
                let cells = unsafe { directory.cells(granule / 64 * 64) };
                prop_assert_eq!(cells(granule % 64).as_ptr().addr(), address);
                prop_assert!(space.starts_at(address) && !space.starts_at(address ^ HALF));
                prop_assert!(directory.is_adopted(granule));
            }
        }
        prop_assert!(!directory.is_adopted(0));
        let page = space.page_index(memory.addr()) as u32;
        prop_assert_eq!(space.page_start(page).as_ptr().addr(), memory.addr());
    }
}

#[test]
fn a_heap_of_segments_has_no_pages_of_its_own() {
    let space = space(1 << 30);
    let tables = space.reserved_bytes();
    assert!(tables < (1 << 30) / 8, "{tables} bytes of tables");
    let memory = Memory::new(1);
    memory.adopt(&space).expect("room");
    let error = space.acquire_large(100, 64, 0).expect_err("no pages");
    assert!(matches!(error, SpaceError::Full { asked: PAGE_SIZE, .. }), "{error}");
    assert_eq!((space.in_use_bytes(), space.pool().in_use), (0, 0));
    assert_eq!((space.reserved_bytes(), space.high_water()), (tables, 2));
}

#[test]
fn the_list_of_ranges_has_each_segment_until_the_heap_ends() {
    const WORD: usize = 0xbeef0;
    let memory = Memory::new(2);
    let space = space(64 << 20);
    space.set_heap(std::ptr::without_provenance(WORD));
    memory.adopt(&space).expect("room");
    let all = [memory.addr(), memory.addr() + 2 * UNIT - 1];
    for addr in all {
        assert_eq!(word_at(addr), Some(WORD), "{addr:#x}");
    }
    assert!(!is_in_any_heap(memory.addr() + 2 * UNIT) && !is_in_any_heap(0));
    drop(space);
    assert!(all.into_iter().all(|addr| !is_in_any_heap(addr)));
}

#[test]
fn only_adopted_memory_has_places_for_objects_of_others() {
    let memory = Memory::new(1);
    let space = space(64 << 20);
    memory.adopt(&space).expect("room");
    let addr = memory.addr();
    assert_eq!(space.check_place(addr), Ok(()));
    assert_eq!(space.check_place(addr + UNIT - GRANULE), Ok(()));
    assert_eq!(space.check_place(addr + HALF), Ok(()));
    for offset in [1, 8, HALF + 8, GRANULE - 1] {
        let misplaced = Err(AdoptError::Misplaced { address: addr + offset });
        assert_eq!(space.check_place(addr + offset), misplaced);
    }
    for elsewhere in [0, NOWHERE, addr + UNIT, 1 << 47] {
        let error = Err(AdoptError::NotAdopted { address: elsewhere });
        assert_eq!(space.check_place(elsewhere), error);
    }
}

/// The halves of neighbours are bits of one word.
#[test]
fn two_threads_set_halves_of_neighbours() {
    let memory = Memory::new(1);
    let space = space(64 << 20);
    memory.adopt(&space).expect("room");
    let start = memory.addr();
    let address = |at: usize, half: usize| start + at * GRANULE + half * HALF;
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (space, address) = (&space, &address);
            scope.spawn(move || {
                for round in 0..5_000 {
                    for at in (thread..64).step_by(2) {
                        let address = address(at, (at + round) % 2);
                        space.set_half(address);
                        assert_eq!(space.address(space.granule(address)), address);
                    }
                }
            });
        }
    });
}

#[test]
fn each_error_says_what_to_do() {
    let errors = [
        (AdoptError::Unaligned { start: 32, bytes: 7 }, "7 bytes at 0x20 are not aligned"),
        (AdoptError::Taken { start: 32, bytes: 7 }, "belongs to a heap already"),
        (AdoptError::Full { reserved: 7 }, "`HeapBuilder::reserve`"),
        (AdoptError::System { code: ENOMEM }, "the system has no memory"),
        (AdoptError::NotAdopted { address: 32 }, "call `adopt` first"),
        (AdoptError::Misplaced { address: 33 }, "0x21 does not start at a multiple of 16"),
        (AdoptError::Registered { address: 32 }, "registered at 0x20 already"),
    ];
    for (error, text) in errors {
        assert!(error.to_string().contains(text), "{error}");
    }
}
