//! The language: the actions of a program on a heap, in numbered places.
//!
//! Handles, weak references and threads have numbers. A step on an empty place does nothing. So any
//! list of steps is a program, also after steps were removed: therefore it shrinks. A step is four
//! bytes, so any source of bytes makes programs: a property test, a fuzzer, a file.

use std::fmt;

/// Places for handles.
pub(crate) const PLACES: usize = 6;
/// Places for weak references.
pub(crate) const WEAKS: usize = 4;
/// Threads.
pub(crate) const SEATS: usize = 3;
/// Steps of the longest program that is read from bytes.
pub(crate) const LONGEST: usize = 512;

/// The containers of an object's references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A locked list, of any length.
    List,
    /// The same, made by `Gc::new_cyclic`, with a weak reference to itself.
    Cyclic,
    /// Two slots that are read without a lock. They take plain lists alone.
    Slots,
    /// One slot that is set once. It takes a plain list.
    Once,
    /// One object with three locked items.
    Slice,
    /// A dynamic object of a static type, with two fields, destroyed by the generic handler.
    Pair,
    /// A dynamic object of a static type, with three items, destroyed by a handler of its own.
    Items,
    /// A dynamic object of a heap type, with two attributes.
    Instance,
    /// A pair with a legacy finalizer.
    Legacy,
    /// A weak reference with a callback, as a typed object. Only `Watch` makes it.
    Watcher,
    /// A weak reference as a dynamic object. Only `Watch` makes it.
    DynWatcher,
    /// A heap type.
    Type,
}

/// The action of an object when it is finalized, cleared or destroyed. It touches only itself and
/// the anchors. So the order in which several objects act, which is unspecified, does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing special, and it has no finalizer.
    Plain,
    /// The finalizer does nothing.
    Quiet,
    /// The finalizer puts it on the shelf: a handle outside the heap.
    Rise,
    /// The finalizer makes the second anchor refer to it.
    Cling,
    /// The finalizer makes it refer to the first anchor.
    Reach,
    /// The finalizer makes a new object, which refers to it, and is referred to.
    Breed,
    /// The finalizer drops all references of its object.
    Cut,
    /// The finalizer panics.
    Throw,
    /// The clear handler panics.
    Stubborn,
    /// The destructor panics.
    Burst,
}

impl Kind {
    pub(crate) fn has_finalizer(self) -> bool {
        !matches!(self, Self::Plain | Self::Stubborn | Self::Burst)
    }
}

impl Shape {
    /// The kind of an object of this shape that is nearest to `kind`.
    pub(crate) fn fit(self, kind: Kind) -> Kind {
        let panics = matches!(kind, Kind::Throw | Kind::Stubborn | Kind::Burst);
        match self {
            Self::List | Self::Cyclic => kind,
            Self::Slots | Self::Once | Self::Slice if !kind.has_finalizer() => kind,
            // A panic cannot leave a handler that C could have written.
            Self::Pair | Self::Items | Self::Instance if !panics => kind,
            Self::Legacy if kind == Kind::Rise => kind,
            _ => Kind::Plain,
        }
    }

    pub(crate) fn is_dynamic(self) -> bool {
        matches!(self, Self::Pair | Self::Items | Self::Instance | Self::Legacy)
    }

    /// How many references an object can hold; `None`: any number.
    pub(crate) fn room(self) -> Option<usize> {
        match self {
            Self::List | Self::Cyclic | Self::Watcher => None,
            Self::Slots | Self::Pair | Self::Instance | Self::Legacy => Some(2),
            Self::Slice | Self::Items => Some(3),
            Self::Once | Self::DynWatcher => Some(1),
            Self::Type => Some(0),
        }
    }
}

/// The action of a new thread on a handle, before the thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Drops it, without having attached.
    Drop,
    /// Attaches and drops it.
    DropAttached,
    /// Clones it, without having attached: the clone comes back to the place.
    Clone,
    /// Attaches, and makes it refer to itself.
    Link,
}

/// One step. Places of handles are `h`, of weak references `w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// `h = a new object`
    Alloc(usize, Shape, Kind),
    /// `h.push(h')`: into its first empty field
    Link(usize, usize),
    /// An edge to an anchor (`true`), or from one.
    LinkAnchor(usize, usize, bool),
    /// `h.remove(k)`
    Unlink(usize, usize),
    /// `h.clear()`
    Clear(usize),
    /// `anchor.clear()`
    ClearAnchor(usize),
    /// `h' = h.clone()`
    Clone(usize, usize),
    /// `drop(h)`
    Drop(usize),
    /// `h' = h[k]`
    Follow(usize, usize, usize),
    /// `h' = h.slots[k].swap(h')`, of lock-free slots
    Swap(usize, usize, usize),
    /// `h.slots[k].compare_exchange(h', h'')`, of lock-free slots
    Exchange(usize, usize, usize, usize),
    /// `w = downgrade(h)`
    Weak(usize, usize),
    /// `drop(w)`
    DropWeak(usize),
    /// `h = w.upgrade()`
    Upgrade(usize, usize),
    /// `h'' = a weak reference to h, with a callback that holds h'`
    Watch(usize, usize, usize),
    /// `h' = h.upgrade()`, of a weak reference that is an object
    Look(usize, usize),
    Track(usize),
    Untrack(usize),
    Immortalize(usize),
    Freeze,
    Unfreeze,
    /// `h = shelf.take_lowest()`
    TakeShelf(usize),
    ClearShelf,
    /// Empties the list of garbage with legacy finalizers.
    TakeGarbage,
    /// Names a known root, in place of the one before.
    Name(usize),
    Unname,
    Safepoint,
    Young,
    Full,
    /// Drops a handle inside of `Mutator::detach`.
    DropDetached(usize),
    /// Clones a handle inside of `Mutator::detach`, into another place.
    CloneDetached(usize, usize),
    /// Ends the mutator, drops a handle, and attaches again.
    Reattach(usize),
    /// Detaches and comes back as a language with two ends of a blocking region does.
    Blocking,
    /// Sends a handle to a thread that is born for it; this one waits, detached (`true`) or
    /// attached.
    Send(usize, Errand, bool),
    /// The steps that follow are this thread's. It is born if need be, and the one before waits,
    /// detached.
    Go(usize),
    /// That thread ends, unless it is the first, or this one.
    End(usize),
}

/// The heaps that a program can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variety {
    /// One collecting thread.
    Plain,
    /// Several workers, for a heap of any size.
    Parallel,
    /// A full collection, verified before and after, at every safepoint.
    Stress,
    /// Dynamic objects are looked up, and their memory is poisoned.
    Checked,
}

pub(crate) const VARIETIES: [Variety; 4] =
    [Variety::Plain, Variety::Parallel, Variety::Stress, Variety::Checked];

/// A program. `Debug` prints it as the body of a regression test.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) variety: Variety,
    pub(crate) steps: Vec<Step>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n    replay(Variety::{:?}, &[", self.variety)?;
        self.steps.iter().try_for_each(|step| writeln!(f, "        {step:?},"))?;
        f.write_str("    ]);")
    }
}

impl Program {
    /// The program that `bytes` spell: one for the heap, and four for each step.
    ///
    /// The program has no immortal objects. A heap with some is never freed, and a reader of
    /// millions of programs needs the memory.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let (&variety, steps) = bytes.split_first().unwrap_or((&0, &[]));
        let steps =
            steps.as_chunks().0.iter().take(LONGEST).map(|&bytes| Step::decode(bytes, false));
        Self { variety: VARIETIES[usize::from(variety) % VARIETIES.len()], steps: steps.collect() }
    }
}

const SHAPES: [Shape; 16] = {
    use Shape::{Cyclic, Instance, Items, Legacy, List, Once, Pair, Slice, Slots};
    [
        List, List, List, List, List, List, Cyclic, Slots, Slots, Once, Slice, Pair, Pair, Items,
        Instance, Legacy,
    ]
};

const KINDS: [Kind; 16] = {
    use Kind::{Breed, Burst, Cling, Cut, Plain, Quiet, Reach, Rise, Stubborn, Throw};
    [
        Plain, Plain, Plain, Plain, Plain, Plain, Plain, Quiet, Rise, Cling, Reach, Breed, Cut,
        Throw, Stubborn, Burst,
    ]
};

const ERRANDS: [Errand; 4] = [Errand::Drop, Errand::DropAttached, Errand::Clone, Errand::Link];

type Cook = fn(a: usize, b: usize, c: usize) -> Step;

fn place(n: usize) -> usize {
    n % PLACES
}

/// Frequencies out of 256, and steps.
const MENU: &[(usize, Cook)] = &[
    (34, |a, b, c| Step::Alloc(place(a), SHAPES[b % 16], KINDS[c % 16])),
    (36, |a, b, _| Step::Link(place(a), place(b))),
    (5, |a, b, c| Step::LinkAnchor(place(a), b % 2, c % 2 == 1)),
    (12, |a, b, _| Step::Unlink(place(a), b % 4)),
    (4, |a, _, _| Step::Clear(place(a))),
    (4, |a, _, _| Step::ClearAnchor(a % 2)),
    (8, |a, b, _| Step::Clone(place(a), place(b))),
    (30, |a, _, _| Step::Drop(place(a))),
    (11, |a, b, c| Step::Follow(place(a), b % 4, place(c))),
    (3, |a, b, c| Step::Swap(place(a), b % 2, place(c))),
    (3, |a, b, c| Step::Exchange(place(a), a / PLACES % 2, place(b), place(c))),
    (8, |a, b, _| Step::Weak(place(a), b % WEAKS)),
    (2, |a, _, _| Step::DropWeak(a % WEAKS)),
    (7, |a, b, _| Step::Upgrade(a % WEAKS, place(b))),
    (8, |a, b, c| Step::Watch(place(a), place(b), place(c))),
    (2, |a, b, _| Step::Look(place(a), place(b))),
    (4, |a, _, _| Step::Track(place(a))),
    (5, |a, _, _| Step::Untrack(place(a))),
    (2, |a, _, _| Step::Immortalize(place(a))),
    (3, |_, _, _| Step::Freeze),
    (4, |_, _, _| Step::Unfreeze),
    (4, |a, _, _| Step::TakeShelf(place(a))),
    (3, |_, _, _| Step::ClearShelf),
    (2, |_, _, _| Step::TakeGarbage),
    (4, |a, _, _| Step::Name(place(a))),
    (3, |_, _, _| Step::Unname),
    (6, |_, _, _| Step::Safepoint),
    (14, |_, _, _| Step::Young),
    (14, |_, _, _| Step::Full),
    (2, |a, _, _| Step::DropDetached(place(a))),
    (2, |a, b, _| Step::CloneDetached(place(a), place(b))),
    (1, |a, _, _| Step::Reattach(place(a))),
    (1, |_, _, _| Step::Blocking),
    (1, |a, b, c| Step::Send(place(a), ERRANDS[b % 4], c % 2 == 1)),
    (3, |a, _, _| Step::Go(a % SEATS)),
    (1, |a, _, _| Step::End(a % SEATS)),
];

// The portions share out the values of one byte.
const _: () = {
    let (mut sum, mut at) = (0, 0);
    while at < MENU.len() {
        sum += MENU[at].0;
        at += 1;
    }
    assert!(sum == 256);
};

impl Step {
    /// The step that four bytes encode: the action and three arguments.
    pub(crate) fn decode([what, a, b, c]: [u8; 4], immortals: bool) -> Self {
        let mut portion = usize::from(what);
        for &(portions, cook) in MENU {
            if portion < portions {
                return match cook(a.into(), b.into(), c.into()) {
                    Self::Immortalize(_) if !immortals => Self::Safepoint,
                    step => step,
                };
            }
            portion -= portions;
        }
        unreachable!("a portion of the menu")
    }
}
