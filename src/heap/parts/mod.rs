//! The parts of an object model, which are what a runtime has beyond the core trait.
//!
//! A collector for every runtime must know weak references, finalizers, and counts in several
//! places, but most runtimes have only some of them. So [`ObjectModel`] has what each needs on its
//! first day, and every further capability is a *part*, a trait of its own.
//!
//! For example, a model names `Finalizers` alone, with [`parts!`](crate::parts), so that its other
//! parts are those of `()`, whose functions do nothing. A phase of the collector calls
//! `Finalizers::finalize` and `WeakRefs::clear_weak` without asking whether the model has them,
//! because the second call vanishes when the collector is compiled for this model. The functions of
//! a part get the model as their first argument, since `()` is no model.

#![forbid(unsafe_code)]

use crate::heap::model::ObjectModel;

mod checks;
mod counts;
mod describe;
mod ephemerons;
mod finalizers;
mod forks;
mod lists;
mod runtime;
mod threads;
mod traversals;
mod uncounted;
mod weak_refs;

pub use self::checks::Checks;
pub use self::counts::{Adjusted, SplitCounts};
pub use self::describe::Describe;
pub use self::ephemerons::{Ephemeron, Ephemerons};
pub use self::finalizers::{Finalizers, Found, Verdict, Verdicts};
pub(crate) use self::forks::HeldLocks;
pub use self::forks::{ForkLocks, Forks};
pub use self::lists::Lists;
pub use self::runtime::{ChildWait, PollWord, RuntimeStop};
pub use self::threads::{ThreadData, Threads};
pub use self::traversals::{Batches, Serial};
pub use self::uncounted::Uncounted;
pub use self::weak_refs::WeakRefs;

/// The parts of the model `M`, as [`parts!`](crate::parts) implements them.
#[allow(missing_docs, reason = "each type is the model, or `()`, and its trait is documented")]
pub trait Parts<M: ObjectModel> {
    type ThreadData: ThreadData<M>;
    type Threads: Threads<M>;
    type SplitCounts: SplitCounts<M>;
    type Adjusted: Adjusted<M>;
    type Batches: Batches<M>;
    type Serial: Serial<M>;
    type Finalizers: Finalizers<M>;
    type Verdicts: Verdicts<M>;
    type WeakRefs: WeakRefs<M>;
    type Ephemerons: Ephemerons<M>;
    type Checks: Checks<M>;
    type Forks: Forks<M>;
    type Uncounted: Uncounted<M>;
    type Lists: Lists<M>;
    type RuntimeStop: RuntimeStop<M>;
    type PollWord: PollWord<M>;
    type Describe: Describe<M>;
}

/// Implements [`Parts`](crate::model::Parts) for a model, with the parts that are listed, whose
/// traits the model implements. Parts that are not listed are absent.
///
/// ```ignore
/// standstill::parts!(Runtime: Finalizers, WeakRefs);
/// standstill::parts!(impl[const CHECKED: bool] Runtime<CHECKED>: Finalizers);
/// ```
///
/// A part that a model without parameters implements and that is not listed does not compile,
/// because the collector would not call it. With `type Parts = ()` nothing is checked.
#[macro_export]
macro_rules! parts {
    (impl[$($params:tt)*] $model:ty: $($part:ident),* $(,)?) => {
        impl<$($params)*> $crate::model::Parts<$model> for $model {
            type ThreadData = $crate::part!(ThreadData [$($part)*] {$model} {()});
            type Threads = $crate::part!(Threads [$($part)*] {$model} {()});
            type SplitCounts = $crate::part!(SplitCounts [$($part)*] {$model} {()});
            type Adjusted = $crate::part!(Adjusted [$($part)*] {$model} {()});
            type Batches = $crate::part!(Batches [$($part)*] {$model} {()});
            type Serial = $crate::part!(Serial [$($part)*] {$model} {()});
            type Finalizers = $crate::part!(Finalizers [$($part)*] {$model} {()});
            type Verdicts = $crate::part!(Verdicts [$($part)*] {$model} {()});
            type WeakRefs = $crate::part!(WeakRefs [$($part)*] {$model} {()});
            type Ephemerons = $crate::part!(Ephemerons [$($part)*] {$model} {()});
            type Checks = $crate::part!(Checks [$($part)*] {$model} {()});
            type Forks = $crate::part!(Forks [$($part)*] {$model} {()});
            type Uncounted = $crate::part!(Uncounted [$($part)*] {$model} {()});
            type Lists = $crate::part!(Lists [$($part)*] {$model} {()});
            type RuntimeStop = $crate::part!(RuntimeStop [$($part)*] {$model} {()});
            type PollWord = $crate::part!(PollWord [$($part)*] {$model} {()});
            type Describe = $crate::part!(Describe [$($part)*] {$model} {()});
        }
        // A name that is no part does not compile.
        const _: () = {
            #[allow(unused_imports)]
            use $crate::model::{$($part as _),*};
        };
    };
    ($model:ty: $($part:ident),* $(,)?) => {
        $crate::parts!(impl[] $model: $($part),*);
        $crate::part!(
            @named [$($part)*] $model: ThreadData Threads SplitCounts Adjusted Batches Serial
            Finalizers Verdicts WeakRefs Ephemerons Checks Forks Uncounted Lists RuntimeStop
            PollWord Describe
        );
    };
}

/// The first tokens in braces, if the list has the part, and otherwise the second ones.
#[doc(hidden)]
#[macro_export]
macro_rules! part {
    (ThreadData [ThreadData $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Threads [Threads $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (SplitCounts [SplitCounts $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Adjusted [Adjusted $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Batches [Batches $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Serial [Serial $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Finalizers [Finalizers $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Verdicts [Verdicts $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (WeakRefs [WeakRefs $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Ephemerons [Ephemerons $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Checks [Checks $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Forks [Forks $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Uncounted [Uncounted $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Lists [Lists $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (RuntimeStop [RuntimeStop $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (PollWord [PollWord $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    (Describe [Describe $($rest:ident)*] {$($yes:tt)*} {$($no:tt)*}) => { $($yes)* };
    ($part:ident [$other:ident $($rest:ident)*] $yes:tt $no:tt) => {
        $crate::part!($part [$($rest)*] $yes $no)
    };
    ($part:ident [] $yes:tt {$($no:tt)*}) => { $($no)* };
    (@named $list:tt $model:ty: $($part:ident)*) => {$(
        const _: () = {
            /// The constant of a model that does not implement the part.
            #[allow(dead_code, reason = "of a listed part, the other constant is read")]
            trait Absent {
                const IMPLEMENTED: bool = false;
            }
            struct Probe<M>(::core::marker::PhantomData<M>);
            impl<M> Absent for Probe<M> {}
            #[allow(dead_code, reason = "of an absent part, the other constant is read")]
            impl<M: $crate::model::ObjectModel + $crate::model::$part<M>> Probe<M> {
                const IMPLEMENTED: bool = true;
            }
            assert!(
                !Probe::<$model>::IMPLEMENTED || $crate::part!($part $list {true} {false}),
                concat!("the model implements ", stringify!($part), ", and `parts!` does not list it"),
            );
        };
    )*};
}

impl<M: ObjectModel> Parts<M> for () {
    type ThreadData = ();
    type Threads = ();
    type SplitCounts = ();
    type Adjusted = ();
    type Batches = ();
    type Serial = ();
    type Finalizers = ();
    type Verdicts = ();
    type WeakRefs = ();
    type Ephemerons = ();
    type Checks = ();
    type Forks = ();
    type Uncounted = ();
    type Lists = ();
    type RuntimeStop = ();
    type PollWord = ();
    type Describe = ();
}

/// [`ThreadData`] of the model `M`.
pub type ThreadDataOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::ThreadData;
/// [`Threads`] of the model `M`.
pub type ThreadsOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Threads;
/// [`SplitCounts`] of the model `M`.
pub type SplitCountsOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::SplitCounts;
/// [`Adjusted`] of the model `M`.
pub type AdjustedOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Adjusted;
/// [`Batches`] of the model `M`.
pub type BatchesOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Batches;
/// [`Serial`] of the model `M`.
pub type SerialOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Serial;
/// [`Finalizers`] of the model `M`.
pub type FinalizersOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Finalizers;
/// [`Verdicts`] of the model `M`.
pub type VerdictsOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Verdicts;
/// [`WeakRefs`] of the model `M`.
pub type WeakRefsOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::WeakRefs;
/// [`Ephemerons`] of the model `M`.
pub type EphemeronsOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Ephemerons;
/// [`Checks`] of the model `M`.
pub type ChecksOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Checks;
/// [`Forks`] of the model `M`.
pub type ForksOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Forks;
/// [`Uncounted`] of the model `M`.
pub type UncountedOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Uncounted;
/// [`Lists`] of the model `M`.
pub type ListsOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Lists;
/// [`RuntimeStop`] of the model `M`.
pub type RuntimeStopOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::RuntimeStop;
/// [`PollWord`] of the model `M`.
pub type PollWordOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::PollWord;
/// [`Describe`] of the model `M`.
pub type DescribeOf<M> = <<M as ObjectModel>::Parts as Parts<M>>::Describe;

/// The data of a model for each mutator that other threads read, as [`ThreadData::Local`] says.
pub type Local<M> = <ThreadDataOf<M> as ThreadData<M>>::Local;

/// The data of a model for each mutator that only its thread uses, as [`ThreadData::Private`] says.
pub type Private<M> = <ThreadDataOf<M> as ThreadData<M>>::Private;

/// A weak callback of the model `M`.
pub type CallbackOf<M> = <WeakRefsOf<M> as WeakRefs<M>>::Callback;

/// Whether heaps of the model have young collections and promotions.
pub const fn collects_young<M: ObjectModel>() -> bool {
    !ListsOf::<M>::PRESENT && UncountedOf::<M>::COLLECTS_YOUNG
}

/// Whether an object with the count 0 is dying, because no reference without a count, and no
/// correction, can keep it alive.
pub const fn zero_is_dying<M: ObjectModel>() -> bool {
    !UncountedOf::<M>::PRESENT && !AdjustedOf::<M>::PRESENT
}
