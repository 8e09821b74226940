//! Floor 5: the services of CPython's `gc` module, for a heap of typed and dynamic objects.
//!
//! [`Heap::services`](crate::Heap::services) gives a handle: switching automatic collections on and off, thresholds, counters, records,
//! progress callbacks, debugging, the garbage list, freezing, and questions about who refers to whom. All handles of a heap are
//! alike, since the state lies with the heap; who does not ask for any of this pays nothing for it.
//!
//! ```
//! use standstill::{Gc, GcCell, Heap, Trace};
//!
//! #[derive(Trace)]
//! struct Node { next: GcCell<Option<Gc<Node>>> }
//!
//! let heap = Heap::new();
//! let services = heap.services();
//! let mut m = heap.attach();
//! let node = m.alloc(Node { next: GcCell::default() });
//! node.next.set(&m, Some(node.clone()));
//! drop(node);
//!
//! assert!(services.disable());
//! assert!(services.collect_if_enabled(&mut m).is_none());
//! assert_eq!(services.collect_generation(&mut m, 2), Ok(1));
//! assert_eq!(services.stats()[2].collected, 1);
//! ```
//!
//! # Generations
//!
//! The interface is in three generations; the collector has two kinds of collection. So:
//!
//! | number | a collection | objects | a counter |
//! |---|---|---|---|
//! | 0 | young | new since the last collection (or [promotion](crate::HeapStats::promotions), in a heap without thresholds) | how many of them there are |
//! | 1 | young, under this number | none | 0 |
//! | 2 | full | the others | young collections since the last full one |
//!
//! # Where the state is, and who may touch it
//!
//! | state | values | where | who |
//! |---|---|---|---|
//! | what the user has said | enabled, disabled | `pacing` | anybody: one atomic swap. A collection that runs goes on |
//! | visits to all objects | how many are going on | `pacing` | who visits. While it is not 0 nothing collects by itself, and the collecting calls here do nothing |
//! | thresholds, source of memory | | `pacing` | anybody |
//! | callbacks, debugging flags and sink, audit hook, records | | `notices` | anybody; see there |
//! | the garbage list | references | the built-in model | attached threads, under its lock; a collection adds to it between its recheck and the clearing |
//! | legacy finalizers | unknown, expected | the built-in model | anybody; off by default |
//!
//! Automatic collections happen when the user has enabled them, nobody visits, no [`DeferGuard`](crate::DeferGuard) lives, and
//! [`Pacing::automatic`](crate::Pacing::automatic) is set: the first of these is all that [`Services::is_enabled`] tells.
//!
//! # Calls from inside
//!
//! What collects or stops the world takes `&mut Mutator`, which no finalizer, destructor, weak callback or progress callback has. Where
//! a language cannot express that, its layer has a mutator while user code up the stack is using it; then collecting calls give
//! nothing and the others a [`Fault`](crate::Fault) with [`Code::NotAllowedHere`](crate::Code::NotAllowedHere). On other threads, collecting calls give nothing while
//! one collects, and do not wait.
//!
//! # The end of a heap
//!
//! When the last handle and mutator are gone the heap collects in full once more, without the progress callbacks of this
//! module, and with finalizers. Is anything in the garbage list then, the hook of
//! [`Heap::on_unraisable`](crate::Heap::on_unraisable) hears of it, the list is emptied, and the heap collected again. What is left after that (but
//! immortal objects) is told by type to the same hook, if the services were ever asked for; see [`Services::tell_leaks`].
//! Where the thread cannot attach to the heap, there is no last collection; that hook is told how many objects are left.
//!
//! # Out of memory
//!
//! Snapshots of objects fail as a [`Fault`](crate::Fault) with [`Code::Memory`](crate::Code::Memory), and nothing has happened. A collection whose work lists
//! cannot grow is abandoned, and its report says so. What is left, in which a refusal aborts the process as it does in std, is
//! listed in `tests/alloc_failure.rs`.

mod audit;
mod callbacks;
mod collecting;
mod debug;
mod garbage;
mod garbage_list;
mod memory;
mod objects;
mod records;
mod scheduling;
mod services;
mod shutdown;
mod state;
mod stop;
mod switch;
mod thresholds;
mod watching;

pub use callbacks::{CallbackInfo, CallbackPhase};
pub use debug::{DEBUG_COLLECTABLE, DEBUG_LEAK, DEBUG_SAVEALL, DEBUG_STATS, DEBUG_UNCOLLECTABLE};
pub use memory::process_memory;
pub use objects::Visit;
pub use records::GenerationStats;
pub use services::Services;
pub(crate) use shutdown::at_the_end;
pub(crate) use state::new_state;
pub use thresholds::Thresholds;
