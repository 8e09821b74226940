//! The machine's limit for a graph without any collector.
//!
//! A [`Graph`] is only memory: each node has the size of an object with its header, and contains
//! its edges. Three loops run over it, each a limit of its own:
//!
//! - [`Graph::chase`]: every load waits for the load before. No collector is slower.
//! - [`Graph::independent`]: the same loads without waits. No collector is faster.
//! - [`Graph::mark`]: the *ideal mark*, the fastest known way to find the reachable nodes.
//!
//! The ideal mark knows one kind of object, so it finds the edges without a call. It writes only
//! beside the nodes: one byte for each, in a table that fits the caches if the nodes do not. A
//! target is claimed when it is found: its byte is read and set, and its number stays on the stack
//! if the byte was clear, without a branch that could be mispredicted. A node that leaves the stack
//! goes through a ring, and is prefetched [`RING`] nodes before its edges are read. If the table
//! itself is too large for the caches, a second ring does the same for the bytes of the targets.
//! Each worker has its own stack, and shares half of it with an idle worker. Workers claim with
//! plain loads and stores, so two workers may, rarely, visit one node. That is cheaper than
//! exclusion.
//!
//! ```text
//!   a node, in units of 16 bytes
//!  0         4         8                   16
//! +---------+---------+-------------------+---------+---------+-- ─ ─
//! | edges   | next in | unused            | edge 0  | edge 1  | …
//! |         | chase   |                   |         |         |
//! +---------+---------+-------------------+---------+---------+-- ─ ─
//! ```
//!
//! Rule *place*: every *place* of the graph (in edges, on stacks, in the chase) is the unit at
//! which one of its own nodes begins.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::hint::{black_box, spin_loop};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::random::SplitMix;

/// The distance in nodes between the prefetch of a node and the read of its edges.
pub const RING: usize = 64;

/// The same for the marks of its targets, where the marks are far away.
const MARKS_RING: usize = 16;

/// From this size on the table of marks is far away: it shares the last cache with everything else.
/// Below, asking for marks costs a nanosecond a node more than it saves.
const FAR: usize = 8 << 20;

/// Bytes of a unit, and of a node's header.
const UNIT: usize = 16;
/// Words of a unit.
const WORDS: usize = UNIT / 4;

/// Nodes in one range of memory, in the order of their numbers.
#[derive(Debug)]
pub struct Graph {
    memory: Memory,
    /// A byte for each `1 << shift` units; no two nodes share one.
    marks: Memory,
    shift: u32,
    /// Are the marks to be asked for as well?
    far: bool,
    /// The nodes' places.
    places: Vec<u32>,
    /// The same, shuffled: the order of the chase and of the independent loads.
    shuffled: Vec<u32>,
}

/// The result of a mark.
#[derive(Clone, Copy, Debug)]
pub struct Marked {
    /// Nodes that the roots reach, each counted once.
    pub visited: usize,
    /// The number of visits of nodes. With several workers it is slightly larger, because two may
    /// claim one node.
    pub scanned: usize,
    /// From the first worker's first node to the last worker's last one.
    pub time: Duration,
}

impl Graph {
    /// A graph of nodes of these sizes in bytes, including the header, and these edges by number.
    /// Sizes are rounded up to 16, and to the size that the edges need.
    ///
    /// # Panics
    ///
    /// When an edge names a node that there is not, or the nodes take more than 64 GiB.
    pub fn new(sizes: &[u32], edges: &[(u32, u32)]) -> Self {
        let mut degrees = vec![0; sizes.len()];
        for &(from, _) in edges {
            degrees[from as usize] += 1;
        }
        let (mut places, mut end, mut smallest) = (Vec::with_capacity(sizes.len()), 0, usize::MAX);
        for (size, degree) in sizes.iter().zip(&degrees) {
            places.push(u32::try_from(end).expect("nodes of at most 64 GiB"));
            let units = (*size as usize).max(UNIT + degree * size_of::<u32>()).div_ceil(UNIT);
            smallest = smallest.min(units);
            end += units;
        }
        assert!(end <= u32::MAX as usize, "nodes of more than 64 GiB");
        let shift = if smallest == usize::MAX { 0 } else { smallest.ilog2() };

        let mut memory = Memory::zeroed(end * UNIT);
        let marks = Memory::zeroed((end >> shift) + 1);
        let words = memory.words();
        for &(from, to) in edges {
            let header = places[from as usize] as usize * WORDS;
            words[header + WORDS + words[header] as usize] = places[to as usize];
            words[header] += 1;
        }
        let mut shuffled = places.clone();
        let mut random = SplitMix::new(0x1dea);
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, random.below(i + 1));
        }
        for (at, place) in shuffled.iter().enumerate() {
            words[*place as usize * WORDS + 1] = shuffled[(at + 1) % shuffled.len()];
        }
        Self { memory, shift, far: marks.length >= FAR, marks, places, shuffled }
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.places.len()
    }

    /// Goes through all nodes in random order, where each says which is next. Nanoseconds a node.
    pub fn chase(&self) -> f64 {
        let Some(&first) = self.shuffled.first() else { return f64::NAN };
        let begun = Instant::now();
        let mut place = first;
        for _ in 0..self.nodes() {
            place = self.header(place)[1];
        }
        let time = begun.elapsed();
        assert_eq!(place, first, "the chase is a cycle");
        self.a_node(time)
    }

    /// Loads from all nodes in random order, where a list says which is next. Nanoseconds a node.
    pub fn independent(&self) -> f64 {
        let begun = Instant::now();
        let sum = self
            .shuffled
            .iter()
            .fold(0, |sum: u32, place| sum.wrapping_add(self.header(*place)[0]));
        black_box(sum);
        self.a_node(begun.elapsed())
    }

    /// The ideal mark of the nodes that `roots` (numbers) reach, by this thread and `workers - 1`
    /// others.
    ///
    /// Making the threads and clearing the marks takes no part of the time.
    ///
    /// # Panics
    ///
    /// When there is no such root, or no worker.
    pub fn mark(&mut self, roots: &[u32], workers: usize) -> Marked {
        assert!(workers > 0, "a mark needs a worker");
        self.marks.words().fill(0);
        let mut begin = Vec::new();
        for root in roots {
            let place = self.places[*root as usize];
            if self.claim(place) {
                begin.push(place);
            }
        }
        let (scanned, time) = if workers == 1 {
            let begun = Instant::now();
            let scanned = Worker::new(self, begin).alone();
            (scanned, begun.elapsed())
        } else {
            self.mark_together(begin, workers)
        };
        let visited = self.marks.bytes().iter().filter(|mark| mark.load(Relaxed) != 0).count();
        Marked { visited, scanned, time }
    }

    fn mark_together(&self, begin: Vec<u32>, workers: usize) -> (usize, Duration) {
        let spare = Spare::new(begin, workers);
        let (barrier, all_here) = (Barrier::new(workers), AtomicUsize::new(0));
        let work = || {
            let worker = Worker::new(self, Vec::new());
            // The barrier's wake-ups take their time; a few spins, and all begin together.
            barrier.wait();
            all_here.fetch_add(1, Relaxed);
            while all_here.load(Relaxed) < workers {
                std::thread::yield_now();
            }
            let begun = Instant::now();
            let scanned = worker.together(&spare);
            (scanned, begun, Instant::now())
        };
        let did: Vec<(usize, Instant, Instant)> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
            let mine = work();
            others.into_iter().map(|other| other.join().expect("a worker")).chain([mine]).collect()
        });
        let begun = did.iter().map(|it| it.1).min().expect("a worker");
        let ended = did.iter().map(|it| it.2).max().expect("a worker");
        (did.iter().map(|it| it.0).sum(), ended - begun)
    }

    fn a_node(&self, time: Duration) -> f64 {
        time.as_nanos() as f64 / self.nodes() as f64
    }

    #[inline(always)]
    fn body(&self, place: u32) -> *const u32 {
        // In bounds by rule *place*.
        self.memory.start.as_ptr().cast::<u32>().wrapping_add(place as usize * WORDS)
    }

    #[inline(always)]
    fn header(&self, place: u32) -> &[u32; WORDS] {
        // SAFETY: rule *place*: a node begins there, with a header of one unit. No thread writes to
        // it after `new` has returned.
        unsafe { &*self.body(place).cast() }
    }

    #[inline(always)]
    fn edges(&self, place: u32) -> &[u32] {
        let count = self.header(place)[0] as usize;
        // SAFETY: rule *place*, and `new` made the node large enough for as many edges as its
        // header says.
        unsafe { std::slice::from_raw_parts(self.body(place).add(WORDS), count) }
    }

    /// Marks the node. Returns whether it was unmarked. Two workers may both get `true`.
    #[inline(always)]
    fn claim(&self, place: u32) -> bool {
        let at = (place >> self.shift) as usize;
        debug_assert!(at < self.marks.length);
        // SAFETY: rule *place*, and the table has a byte for each place.
        let mark = unsafe { self.marks.bytes().get_unchecked(at) };
        // Relaxed: plain instructions. A mark says nothing of anything else.
        let fresh = mark.load(Relaxed) == 0;
        mark.store(1, Relaxed);
        fresh
    }

    /// Asks for a node's first edges from memory.
    #[inline(always)]
    fn prefetch(&self, place: u32) {
        // Twice, since a node may begin at the end of a line.
        let body = self.body(place).cast::<u8>();
        prefetch(body);
        prefetch(body.wrapping_add(2 * UNIT - 1));
    }

    /// Asks for the marks of a node's targets.
    #[inline(always)]
    fn prefetch_marks(&self, place: u32) {
        for edge in self.edges(place) {
            prefetch(self.marks.start.as_ptr().wrapping_add((edge >> self.shift) as usize));
        }
    }
}

/// Asks for a line from memory.
#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address affects only caches.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Nodes that something was asked for, in the order of asking.
struct Ring<const N: usize> {
    places: [u32; N],
    oldest: usize,
    waiting: usize,
}

impl<const N: usize> Ring<N> {
    const EMPTY: Self = Self { places: [0; N], oldest: 0, waiting: 0 };

    /// Puts a node in, for the oldest one if the ring is full.
    #[inline(always)]
    fn exchange(&mut self, place: u32) -> Option<u32> {
        if self.waiting == N {
            let oldest = std::mem::replace(&mut self.places[self.oldest], place);
            self.oldest = (self.oldest + 1) % N;
            return Some(oldest);
        }
        self.places[(self.oldest + self.waiting) % N] = place;
        self.waiting += 1;
        None
    }

    /// Takes the oldest one out.
    #[inline(always)]
    fn take(&mut self) -> Option<u32> {
        self.waiting = self.waiting.checked_sub(1)?;
        let oldest = self.places[self.oldest];
        self.oldest = (self.oldest + 1) % N;
        Some(oldest)
    }
}

/// One thread of a mark.
struct Worker<'a> {
    graph: &'a Graph,
    stack: Vec<u32>,
    /// Nodes that are being prefetched.
    bodies: Ring<RING>,
    /// If they are far away: nodes whose targets' marks are being prefetched after that.
    marks: Ring<MARKS_RING>,
    scanned: usize,
}

impl<'a> Worker<'a> {
    fn new(graph: &'a Graph, stack: Vec<u32>) -> Self {
        Self { graph, stack, bodies: Ring::EMPTY, marks: Ring::EMPTY, scanned: 0 }
    }

    /// Marks everything, without others.
    fn alone(mut self) -> usize {
        while let Some(place) = self.next() {
            self.scan(place);
        }
        self.scanned
    }

    /// Marks until all workers have nothing left.
    fn together(mut self, spare: &Spare) -> usize {
        loop {
            while let Some(place) = self.next() {
                self.scan(place);
                if spare.wanted() && self.left() >= FEW {
                    spare.give(self.half());
                }
            }
            match spare.take() {
                Some(stack) => self.stack = stack,
                None => return self.scanned,
            }
        }
    }

    /// The next node to visit. All its memory was prefetched some time ago.
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        if !self.graph.far {
            return self.next_body();
        }
        while let Some(place) = self.next_body() {
            self.graph.prefetch_marks(place);
            if let Some(ready) = self.marks.exchange(place) {
                return Some(ready);
            }
        }
        self.marks.take()
    }

    /// The next node that was prefetched some time ago.
    #[inline(always)]
    fn next_body(&mut self) -> Option<u32> {
        while let Some(place) = self.stack.pop() {
            self.graph.prefetch(place);
            if let Some(ready) = self.bodies.exchange(place) {
                return Some(ready);
            }
        }
        self.bodies.take()
    }

    /// Claims the targets of the node's edges.
    #[inline(always)]
    fn scan(&mut self, place: u32) {
        self.scanned += 1;
        let edges = self.graph.edges(place);
        self.stack.reserve(edges.len());
        let (start, mut top) = (self.stack.as_mut_ptr(), self.stack.len());
        for &edge in edges {
            // SAFETY: `top` grows by at most one for each edge, and there is room for all of them.
            unsafe { start.add(top).write(edge) };
            top += usize::from(self.graph.claim(edge));
        }
        // SAFETY: everything below `top` has been written.
        unsafe { self.stack.set_len(top) };
    }

    /// How much is to be done. The rings count: a small stack behind full rings is much work.
    fn left(&self) -> usize {
        self.stack.len() + self.bodies.waiting + self.marks.waiting
    }

    /// Half of it.
    fn half(&mut self) -> Vec<u32> {
        while let Some(place) = self.bodies.take().or_else(|| self.marks.take()) {
            self.stack.push(place);
        }
        // The lower half: it was found earlier, and there is more behind it.
        let rest = self.stack.split_off(self.stack.len() / 2);
        std::mem::replace(&mut self.stack, rest)
    }
}

/// A worker with less work than this shares nothing.
const FEW: usize = 8;

/// Shared work, and the workers that wait for it.
struct Spare {
    stacks: Mutex<Stacks>,
    changed: Condvar,
    /// A worker waits, and there is no work for it. Only a hint: the state under the lock decides.
    wanted: AtomicBool,
    /// There is something to take, or everything is done. A hint as well.
    ready: AtomicBool,
    workers: usize,
}

struct Stacks {
    stacks: Vec<Vec<u32>>,
    idle: usize,
}

impl Spare {
    fn new(stack: Vec<u32>, workers: usize) -> Self {
        Self {
            stacks: Mutex::new(Stacks { stacks: vec![stack], idle: 0 }),
            changed: Condvar::new(),
            wanted: AtomicBool::new(false),
            ready: AtomicBool::new(true),
            workers,
        }
    }

    #[inline(always)]
    fn wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    fn give(&self, stack: Vec<u32>) {
        let mut stacks = self.lock();
        stacks.stacks.push(stack);
        self.hint(&stacks);
        self.changed.notify_one();
    }

    /// Waits for work; `None` once no worker has any.
    fn take(&self) -> Option<Vec<u32>> {
        const SPINS: usize = 2_000;
        let mut stacks = self.lock();
        stacks.idle += 1;
        let mut patient = true;
        loop {
            if let Some(stack) = stacks.stacks.pop() {
                stacks.idle -= 1;
                self.hint(&stacks);
                return Some(stack);
            }
            self.hint(&stacks);
            if stacks.idle == self.workers {
                self.changed.notify_all();
                return None;
            }
            // Asleep only after some microseconds: most waits are shorter than waking up.
            stacks = if std::mem::take(&mut patient) {
                drop(stacks);
                (0..SPINS).take_while(|_| !self.ready.load(Relaxed)).for_each(|_| spin_loop());
                self.lock()
            } else {
                self.changed.wait(stacks).expect("no worker panics")
            };
        }
    }

    fn hint(&self, stacks: &Stacks) {
        self.wanted.store(stacks.idle > stacks.stacks.len(), Relaxed);
        self.ready.store(!stacks.stacks.is_empty() || stacks.idle == self.workers, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Stacks> {
        self.stacks.lock().expect("no worker panics")
    }
}

/// Zeroed memory, in huge pages where the system has some and it is large.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it owns its bytes, and gives them out shared only as atomics or, through `Graph`, to be
// read.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    const HUGE: usize = 2 << 20;

    /// At least `bytes`, and a few so that it is never empty.
    fn zeroed(bytes: usize) -> Self {
        let length = bytes.next_multiple_of(UNIT).max(UNIT);
        // SAFETY: the layout is not empty.
        let Some(start) = NonNull::new(unsafe { alloc(Self::layout(length)) }) else {
            handle_alloc_error(Self::layout(length))
        };
        let memory = Self { start, length };
        memory.advise_huge();
        // SAFETY: just allocated with this length.
        unsafe { start.write_bytes(0, length) };
        memory
    }

    fn layout(length: usize) -> Layout {
        let align = if length >= Self::HUGE { Self::HUGE } else { 64 };
        Layout::from_size_align(length, align).expect("a range that fits the address space")
    }

    #[cfg(target_os = "linux")]
    fn advise_huge(&self) {
        const MADV_HUGEPAGE: i32 = 14;
        unsafe extern "C" {
            fn madvise(address: *mut u8, length: usize, advice: i32) -> i32;
        }
        if self.length >= Self::HUGE {
            // SAFETY: within the allocation; this advice changes no contents. A refusal is no
            // failure.
            unsafe {
                madvise(self.start.as_ptr(), self.length / Self::HUGE * Self::HUGE, MADV_HUGEPAGE)
            };
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_huge(&self) {}

    fn words(&mut self) -> &mut [u32] {
        // SAFETY: initialised, aligned, of whole units, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.length / 4) }
    }

    #[inline(always)]
    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: initialised; while shared, the marks are read and written through this alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.length) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with the same layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.length)) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Breadth first, with nothing clever.
    fn naive(nodes: usize, edges: &[(u32, u32)], roots: &[u32]) -> Vec<bool> {
        let mut targets = vec![Vec::new(); nodes];
        for &(from, to) in edges {
            targets[from as usize].push(to);
        }
        let mut reached = vec![false; nodes];
        let mut queue: VecDeque<u32> = roots.iter().copied().collect();
        while let Some(node) = queue.pop_front() {
            if !std::mem::replace(&mut reached[node as usize], true) {
                queue.extend(&targets[node as usize]);
            }
        }
        reached
    }

    fn marks(graph: &Graph) -> Vec<bool> {
        let marked =
            |place: &u32| graph.marks.bytes()[(place >> graph.shift) as usize].load(Relaxed) != 0;
        graph.places.iter().map(marked).collect()
    }

    #[test]
    fn a_mark_visits_the_nodes_that_a_naive_search_visits() {
        let mut random = SplitMix::new(42);
        for round in 0..60 {
            let nodes = 1 + random.below(if round < 50 { 200 } else { 20_000 });
            let density = random.below(4);
            let mut node = || random.below(nodes) as u32;
            let edges: Vec<_> = (0..nodes * density).map(|_| (node(), node())).collect();
            let roots: Vec<_> = (0..round % 4).map(|_| node()).collect();
            let sizes: Vec<_> = (0..nodes).map(|_| 16 + 8 * random.below(12) as u32).collect();
            let expected = naive(nodes, &edges, &roots);
            let reached = expected.iter().filter(|reached| **reached).count();

            let mut graph = Graph::new(&sizes, &edges);
            for (workers, far) in [(1, false), (2, false), (3, false), (1, true), (2, true)] {
                graph.far = far;
                let marked = graph.mark(&roots, workers);
                assert_eq!(marks(&graph), expected, "round {round}, {workers} workers, {far}");
                assert_eq!(marked.visited, reached);
                assert!(if workers == 1 {
                    marked.scanned == reached
                } else {
                    marked.scanned >= reached
                });
            }
        }
    }

    #[test]
    fn a_long_list_is_followed_to_its_end() {
        let nodes = 100_000;
        let edges: Vec<_> = (1..nodes).map(|node| (node - 1, node)).collect();
        let mut graph = Graph::new(&vec![32; nodes as usize], &edges);
        for workers in [1, 2] {
            assert_eq!(graph.mark(&[0], workers).visited, nodes as usize);
            assert_eq!(graph.mark(&[nodes / 2], workers).visited, nodes as usize / 2);
        }
    }

    #[test]
    fn nodes_have_their_rounded_sizes_and_all_their_edges() {
        // The size is rounded to 16, and to the edges: node 1 has 5 of them.
        let edges: Vec<_> = (0..5).map(|to| (1, to)).collect();
        let graph = Graph::new(&[17, 16, 48, 64, 32], &edges);
        assert_eq!(graph.places, [0, 2, 5, 8, 12]);
        assert_eq!(graph.shift, 1);
        assert_eq!(graph.edges(graph.places[1]), graph.places);
        assert!(graph.edges(graph.places[0]).is_empty());
    }

    #[test]
    fn the_chase_goes_through_all_nodes() {
        let graph = Graph::new(&[64; 1000], &[]);
        let mut seen = std::collections::BTreeSet::new();
        let mut place = graph.places[0];
        while seen.insert(place) {
            place = graph.header(place)[1];
        }
        assert_eq!(seen.len(), 1000);
        assert!(graph.chase() > 0.0 && graph.independent() > 0.0);
        assert!(Graph::new(&[], &[]).chase().is_nan());
    }
}
