//! An [`Object`] is only an address, which may dangle, so a function that reads the object there
//! needs a proof. Each of these types adds a fact on which the holder may rely. For example, a
//! function that reads a header takes a [`Live`]. A value of each type has the layout of the
//! address, so that a list of addresses becomes a list of proofs without a copy.
//!
//! | type | the object | made from |
//! |---|---|---|
//! | [`Live`] | is alive for `'a` | a reference that exists for `'a` |
//! | [`Stopped`] | is alive for `'w`, and the world is stopped | the world's token |
//! | [`ClaimRef`] | has a reference that its collection owns | [`claim_ref`] |
//! | [`DeadObject`] | has the count 0, and only the holder destroys it | [`merge`] |
//!
//! [`claim_ref`]: crate::model::ObjectModel::claim_ref
//! [`merge`]: crate::model::SplitCounts::merge

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::object::address::Object;

/// An object that is alive for `'a`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Live<'a> {
    object: Object,
    alive: PhantomData<&'a ()>,
}

impl Live<'_> {
    /// The proof for `object`.
    ///
    /// # Safety
    ///
    /// A reference to the object exists for the lifetime.
    #[inline(always)]
    pub const unsafe fn new(object: Object) -> Self {
        Self { object, alive: PhantomData }
    }

    /// The proofs for `objects`, where they lie.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new), for each of them.
    pub(crate) const unsafe fn slice(objects: &[Object]) -> &[Self] {
        // SAFETY: rule *guarded*: transparent over the address.
        unsafe { std::slice::from_raw_parts(objects.as_ptr().cast(), objects.len()) }
    }

    /// The address.
    #[inline(always)]
    pub const fn object(self) -> Object {
        self.object
    }
}

/// An object that is alive for `'w`, while the world is stopped, so that no thread changes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Stopped<'w> {
    object: Object,
    world: PhantomData<&'w ()>,
}

impl<'w> Stopped<'w> {
    /// The proof for `object`.
    ///
    /// # Safety
    ///
    /// The object is alive, and the world is stopped for the lifetime.
    #[inline(always)]
    pub const unsafe fn new(object: Object) -> Self {
        Self { object, world: PhantomData }
    }

    /// The address.
    #[inline(always)]
    pub const fn object(self) -> Object {
        self.object
    }

    /// The weaker proof, for functions that need no stop.
    #[inline(always)]
    pub const fn live(self) -> Live<'w> {
        Live { object: self.object, alive: PhantomData }
    }

    /// The proofs for `objects`, where they lie.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new), for each of them.
    #[inline(always)]
    pub(crate) const unsafe fn slice(objects: &[Object]) -> &[Self] {
        // SAFETY: rule *guarded*: transparent over the address.
        unsafe { std::slice::from_raw_parts(objects.as_ptr().cast(), objects.len()) }
    }

    /// The addresses.
    #[inline(always)]
    pub const fn objects(these: &[Self]) -> &[Object] {
        // SAFETY: rule *guarded*: transparent over the address.
        unsafe { std::slice::from_raw_parts(these.as_ptr().cast(), these.len()) }
    }
}

/// A reference that a collection has taken on an object and owns, so that it is released once.
#[derive(PartialEq, Eq, Debug)]
#[repr(transparent)]
#[must_use = "the reference stays until it is released"]
pub struct ClaimRef(Object);

impl ClaimRef {
    /// The reference to `object`.
    ///
    /// # Safety
    ///
    /// The collection has taken a reference on the object, and no other value stands for it.
    #[inline(always)]
    pub const unsafe fn new(object: Object) -> Self {
        Self(object)
    }

    /// The references to all of `objects`, in the vector's memory, so that none is copied.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new), for each of them.
    pub(crate) unsafe fn all(objects: Vec<Stopped<'_>>) -> Vec<Self> {
        let mut objects = ManuallyDrop::new(objects);
        let (len, capacity) = (objects.len(), objects.capacity());
        // SAFETY: rule *guarded*: both are transparent over the address. The vector is not used
        // again.
        unsafe { Vec::from_raw_parts(objects.as_mut_ptr().cast(), len, capacity) }
    }

    /// The addresses, in the memory of the references, which are owned by the caller from here on.
    pub(crate) fn into_objects(these: Vec<Self>) -> Vec<Object> {
        let mut these = ManuallyDrop::new(these);
        let (len, capacity) = (these.len(), these.capacity());
        // SAFETY: as in `all`.
        unsafe { Vec::from_raw_parts(these.as_mut_ptr().cast(), len, capacity) }
    }

    /// The proofs, as long as the references are lent.
    pub(crate) const fn live_slice(these: &[Self]) -> &[Live<'_>] {
        // SAFETY: rule *guarded*: both are transparent over the address. Each reference exists for
        // the borrow.
        unsafe { std::slice::from_raw_parts(these.as_ptr().cast(), these.len()) }
    }

    /// The proof, as long as the reference is lent.
    #[inline(always)]
    pub const fn live(&self) -> Live<'_> {
        Live { object: self.0, alive: PhantomData }
    }

    /// The address.
    #[inline(always)]
    pub const fn object(&self) -> Object {
        self.0
    }
}

/// The number of objects between the prefetch of a garbage object and its turn.
const AHEAD: usize = 16;

/// Prefetches the object at the place `at` + [`AHEAD`] of a list, because each phase that handles
/// garbage reads and writes the first bytes of each object.
#[inline(always)]
pub(crate) fn prefetch_ahead(objects: &[impl Deref<Target = Object>], at: usize) {
    if let Some(ahead) = objects.get(at + AHEAD) {
        ahead.prefetch();
    }
}

/// Several [`ClaimRef`]s that lie in borrowed memory.
#[derive(Debug)]
#[must_use = "the references stay until they are released"]
pub(crate) struct ClaimRefs<'a>(&'a [Object]);

impl<'a> ClaimRefs<'a> {
    /// The references to `objects`.
    ///
    /// # Safety
    ///
    /// As for [`ClaimRef::new`], for each of them.
    pub(crate) const unsafe fn new(objects: &'a [Object]) -> Self {
        Self(objects)
    }

    /// The proofs, as long as the references are lent.
    pub(crate) const fn live(&self) -> &[Live<'_>] {
        // SAFETY: rule *guarded*: transparent over the address. Each reference exists for the
        // borrow.
        unsafe { Live::slice(self.0) }
    }
}

impl Iterator for ClaimRefs<'_> {
    type Item = ClaimRef;

    fn next(&mut self) -> Option<ClaimRef> {
        prefetch_ahead(self.live(), 0);
        self.0.split_off_first().copied().map(ClaimRef)
    }
}

/// An object whose count is 0, and which only the holder destroys.
#[derive(PartialEq, Eq, Debug)]
#[repr(transparent)]
#[must_use = "the object is destroyed by nothing else"]
pub struct DeadObject(Object);

impl DeadObject {
    /// The right to destroy `object`.
    ///
    /// # Safety
    ///
    /// The count of the object is 0, no other thread finds the object, and no other value stands
    /// for it.
    pub const unsafe fn new(object: Object) -> Self {
        Self(object)
    }

    /// The address.
    #[inline(always)]
    pub const fn object(&self) -> Object {
        self.0
    }
}

impl Deref for Live<'_> {
    type Target = Object;
    #[inline(always)]
    fn deref(&self) -> &Object {
        &self.object
    }
}

impl Deref for Stopped<'_> {
    type Target = Object;
    #[inline(always)]
    fn deref(&self) -> &Object {
        &self.object
    }
}

impl From<Stopped<'_>> for Object {
    #[inline(always)]
    fn from(stopped: Stopped<'_>) -> Self {
        stopped.object
    }
}
