//! A correct model with all parts, in which each fault changes one thing.

use std::cell::Cell;
use std::collections::HashMap;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

use standstill::OutOfMemory;
use standstill::model::{
    ClaimRef, DeadObject, Ends, Found, Live, ModelMutator, Object, ObjectModel, Stopped, Tracer,
    Verdict, World,
};
use standstill::model_check::{Abilities, Journal, ObjectSpec, Specimen};
use standstill::safepoint::ThreadId;

macro_rules! faults {
    ($($name:ident)*) => {
        /// The one thing that a model does wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types)]
        #[repr(u32)]
        pub enum Fault { $($name),* }

        impl Fault {
            $(pub const $name: u32 = Self::$name as u32;)*
        }
    };
}
