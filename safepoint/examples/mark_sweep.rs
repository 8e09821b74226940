//! A stop for the collector of another library. The heap below knows no threads: it collects when
//! it is told the roots, which are the shadow stacks of all threads, as they are in a stop.

use std::sync::Mutex;

use standstill_safepoint::{Coordinator, Participant};

/// The other library: cells with two references each, freed by mark and sweep.
mod heap {
    pub(crate) type Ref = usize;

    #[derive(Default)]
    pub(crate) struct Heap {
        cells: Vec<Option<[Option<Ref>; 2]>>,
        free: Vec<Ref>,
    }

    impl Heap {
        pub(crate) fn allocate(&mut self, cell: [Option<Ref>; 2]) -> Ref {
            if let Some(at) = self.free.pop() {
                self.cells[at] = Some(cell);
                return at;
            }
            self.cells.push(Some(cell));
            self.cells.len() - 1
        }

        pub(crate) fn get(&self, at: Ref) -> [Option<Ref>; 2] {
            self.cells[at].expect("a cell that is reached was not freed")
        }

        /// Frees the cells that no root reaches, and returns how many are left.
        pub(crate) fn collect(&mut self, mut roots: Vec<Ref>) -> usize {
            let mut marked = vec![false; self.cells.len()];
            while let Some(at) = roots.pop() {
                if !std::mem::replace(&mut marked[at], true) {
                    roots.extend(self.get(at).into_iter().flatten());
                }
            }
            for (at, cell) in self.cells.iter_mut().enumerate() {
                if !marked[at] && cell.take().is_some() {
                    self.free.push(at);
                }
            }
            self.cells.len() - self.free.len()
        }
    }
}

/// A thread's own roots. Only that thread uses them, but in a stop.
type ShadowStack = Mutex<Vec<heap::Ref>>;

struct Runtime {
    heap: Mutex<heap::Heap>,
}

impl Runtime {
    fn push(&self, me: &Participant<ShadowStack>, rest: Option<heap::Ref>) -> heap::Ref {
        let cell = self.heap.lock().expect("no thread panics").allocate([rest, None]);
        me.data().lock().expect("no thread panics").push(cell);
        cell
    }

    /// Stops the threads, collects with the roots of all, and lets them run on.
    fn collect(&self, me: &Participant<ShadowStack>) -> usize {
        let world = me.stop().expect("no thread ends attached");
        let mut roots = Vec::new();
        world.threads(|_, stack| roots.extend(&*stack.lock().expect("no thread panics")));
        self.heap.lock().expect("no thread panics").collect(roots)
    }

    /// Makes lists of 50 cells, of which only the newest is kept, and checks each.
    fn run(&self, me: &Participant<ShadowStack>) {
        me.attach().expect("the thread is detached");
        for round in 0..200 {
            me.data().lock().expect("no thread panics").clear(); // the last list is garbage
            let mut list = None;
            for _ in 0..50 {
                list = Some(self.push(me, list));
                if me.poll() != 0 {
                    me.park(); // between two operations: the roots are on the stack
                }
            }
            let heap = self.heap.lock().expect("no thread panics");
            let length = std::iter::successors(list, |&at| heap.get(at)[0]).count();
            drop(heap);
            assert_eq!(length, 50, "a collection has freed cells that are in use");
            if round % 20 == 0 {
                self.collect(me);
            }
        }
        me.data().lock().expect("no thread panics").clear();
        me.detach();
    }
}

fn main() {
    let coordinator = Coordinator::<ShadowStack>::new();
    let runtime = Runtime { heap: Mutex::default() };
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| runtime.run(&coordinator.register(ShadowStack::default())));
        }
    });
    let me = coordinator.register(ShadowStack::default());
    me.attach().expect("the thread is detached");
    let left = runtime.collect(&me);
    println!("{} stops; {left} cells are left", coordinator.stats().stops);
    assert_eq!(left, 0, "the lists of ended threads are garbage");
}

#[test]
fn no_cell_in_use_is_freed() {
    main();
}
