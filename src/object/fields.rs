//! The names of fields, for an inspection.
//!
//! A traversal reports addresses, and only a survey wants to know by which field. So a tracer notes
//! a name together with the number of the references before it. For example, `left` is noted before
//! the first reference and `right` before the third one, so that two belong to `left`.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::base::fallible::{self, NoMemory};
use crate::object::tracer::Tracer;

impl Tracer {
    /// A tracer for an inspection that wants the names of fields.
    pub(crate) fn naming(base: usize, len: usize) -> Self {
        let mut tracer = Self::for_collection(base, len);
        tracer.fields = Some(Vec::new());
        tracer
    }

    /// A [naming](Self::naming) tracer for a child of the process, which must not allocate. Memory
    /// counts as lacking for an object with more references or fields than fit.
    pub(crate) fn fixed(
        base: usize,
        len: usize,
        references: usize,
        fields: usize,
    ) -> Result<Self, NoMemory> {
        let mut tracer = Self::naming(base, len);
        let names = tracer.fields.get_or_insert_default();
        names.try_reserve_exact(fields)?;
        tracer.fix(references)?;
        Ok(tracer)
    }

    /// The references that are reported next, until the next call, are those of the field `name`.
    /// For [`Trace::describe`](crate::Trace::describe) and
    /// [`Describe::fields`](crate::model::Describe::fields); elsewhere it does nothing.
    pub fn field(&mut self, name: impl Into<Cow<'static, str>>) {
        let before = self.edges().len();
        if let Some(fields) = &mut self.fields {
            let has_room = !self.is_fixed || fields.len() < fields.capacity();
            self.lost |= !has_room || fallible::push(fields, (before, name.into())).is_err();
        }
    }

    /// The current value owns so many bytes outside the heap. For
    /// [`Trace::describe`](crate::Trace::describe); elsewhere it does nothing.
    pub fn external(&mut self, bytes: usize) {
        self.external = self.external.saturating_add(bytes);
    }

    pub(crate) fn take_external(&mut self) -> usize {
        std::mem::take(&mut self.external)
    }

    /// Names the references of the current object, by the addresses of their targets.
    #[cfg(feature = "cpython")]
    pub(crate) fn name_edges(&mut self, mut name: impl FnMut(usize) -> Option<Cow<'static, str>>) {
        let Some(mut fields) = self.fields.take() else { return };
        let mut edges = self.edges().iter().enumerate();
        let kept = edges.try_for_each(|(at, &edge)| {
            let name = name(edge).unwrap_or_default();
            if fields.last().map_or("", |(_, last)| last) == name {
                return Ok(());
            }
            if self.is_fixed && fields.len() == fields.capacity() {
                return Err(NoMemory);
            }
            fallible::push(&mut fields, (at, name))
        });
        self.fields = Some(fields);
        self.lost |= kept.is_err();
    }

    /// The fields of the current object, each with the number of the edges before it.
    pub(crate) fn fields(&self) -> &[(usize, Cow<'static, str>)] {
        self.fields.as_deref().unwrap_or_default()
    }

    /// The field of the references that are reported now, which a value inside of it restores after
    /// its own fields.
    #[doc(hidden)]
    pub fn outer_field(&self) -> Option<Cow<'static, str>> {
        self.fields.as_ref().map(|fields| fields.last().map_or("".into(), |(_, name)| name.clone()))
    }
}
