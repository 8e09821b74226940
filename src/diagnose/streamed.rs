//! A snapshot that a child of the process writes, so that no stop lasts as long as the work.
//!
//! A [graph](super::graph) takes 48 bytes for an object and more while it is made, and the stop
//! lasts until all objects are visited. A [child](crate::heap::child) has a heap that nothing
//! changes, so it can visit the objects as often as it likes, and needs to remember only what no
//! visit tells: the place of each object in the file, and the number of references to it.
//!
//! For example, A at granule 4 and B at granule 9 are alive, and A refers to B. The child
//!
//! 1. sets bits 4 and 9. The place of an object is the number of bits before its own, so A has
//!    place 0 and B place 1;
//! 2. visits A and B, and counts one reference to place 1;
//! 3. compares with the counts: A has one that no object holds, so it is held from outside;
//! 4. visits the objects again for their nodes, and once more for their edges, and writes each at
//!    once.
//!
//! The child has a bit for each granule of the heap, and 8 bytes and two bits for each object.
//!
//! An object that describes itself differently the second time would make the file wrong. So the
//! edges of each object are counted, and a difference ends the work.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::base::fallible::{NO_WORDS, NoMemory};
use crate::base::sync::Ordering;
use crate::base::system::process::Bound;
use crate::collect::calls::{Abandoned, guard_traversal};
use crate::collect::listing::{self, Adjustments};
use crate::collect::scope::{self, Selection, stopped_at};
use crate::diagnose::graph::HeapGraph;
use crate::diagnose::snapshot::{
    PartFile, PieceWriter, ProcessStamp, STRINGS, SnapshotEdge, SnapshotNode, SnapshotSource,
    SnapshotTotals, write_from,
};
use crate::diagnose::survey::{bytes_of, may_stop, stopped};
use crate::heap::child::{self, ChildRoom, JobError, NoAnswer, Working};
use crate::heap::model::{Count, ObjectModel};
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::memory::shape::PAGE_GRANULES;
use crate::model::fork::ClaimedObjects;
use crate::object::live::Stopped;
use crate::object::state::{self, ObjectFlags};
use crate::object::tracer::Tracer;
use crate::report::error::Fault;
use crate::report::event;

/// The most references of an object.
const MOST_REFERENCES: usize = 1 << 24;
/// The most fields of an object that have names.
const MOST_FIELDS: usize = 1 << 20;
/// The most names of types and fields.
const MOST_NAMES: usize = 1 << 20;
/// The most bytes of these names.
const NAME_BYTES: usize = 1 << 26;

const WORD: usize = u64::BITS as usize;
const PAGE_WORDS: usize = PAGE_GRANULES / WORD;

/// What the child needs and must not ask for itself.
struct Prepared {
    claims: ClaimedObjects,
    /// The granules of the objects that the model has reported as roots, in order.
    roots: Vec<u32>,
    adjustments: Adjustments,
}

impl Prepared {
    fn of<M: ObjectModel>(world: &World<'_, M>) -> Result<Self, Abandoned> {
        let (mask, value) = Selection::All.bits();
        let states = world.core().space.states();
        // Relaxed: in a stop.
        let is_candidate = |granule: usize| states[granule].load(Ordering::Relaxed) & mask == value;
        let claims = ClaimedObjects::of(world)?;
        let mut roots = listing::roots(world, is_candidate, Selection::All)?;
        roots.sort_unstable();
        Ok(Self { claims, roots, adjustments: Adjustments::ask(world, |_| true)? })
    }
}

/// The bits that are set, in order.
fn bits(words: &[u64]) -> impl Iterator<Item = usize> + '_ {
    words.iter().enumerate().flat_map(|(at, &word)| {
        let mut left = word;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (bit < WORD).then_some(at * WORD + bit)
        })
    })
}

fn set(words: &mut [u64], bit: usize) {
    words[bit / WORD] |= 1 << (bit % WORD);
}

fn is_set(words: &[u64], bit: usize) -> bool {
    words[bit / WORD] & 1 << (bit % WORD) != 0
}

/// The numbers of names, and their texts.
struct NameNumbers<'r> {
    /// A hash table of numbers, each plus 1.
    slots: &'r mut [u32],
    /// Where each name ends in `text`.
    ends: &'r mut [u32],
    text: &'r mut [u8],
    len: usize,
    /// The last name, by its place and length, and its number: the next one is mostly the same.
    last: (usize, usize, usize),
}

impl<'r> NameNumbers<'r> {
    fn new(room: &'r ChildRoom) -> Result<Self, JobError> {
        let (slots, ends) = (room.take(2 * MOST_NAMES)?, room.take(MOST_NAMES)?);
        let mut names = Self { slots, ends, text: room.take(NAME_BYTES)?, len: 0, last: (0, 0, 0) };
        for text in STRINGS {
            names.number(text)?;
        }
        Ok(names)
    }

    fn name(&self, number: usize) -> &str {
        let start = if number == 0 { 0 } else { self.ends[number - 1] as usize };
        std::str::from_utf8(&self.text[start..self.ends[number] as usize]).unwrap_or_default()
    }

    /// `name` is never freed in the child.
    fn number(&mut self, name: &str) -> Result<usize, JobError> {
        let key = (name.as_ptr() as usize, name.len());
        if key != (self.last.0, self.last.1) {
            self.last = (key.0, key.1, self.find(name)?);
        }
        Ok(self.last.2)
    }

    fn find(&mut self, name: &str) -> Result<usize, JobError> {
        let mut hasher = DefaultHasher::new();
        hasher.write(name.as_bytes());
        let mask = self.slots.len() - 1;
        let mut at = hasher.finish() as usize & mask;
        while self.slots[at] != 0 {
            let number = self.slots[at] as usize - 1;
            if self.name(number) == name {
                return Ok(number);
            }
            at = (at + 1) & mask;
        }
        let start = if self.len == 0 { 0 } else { self.ends[self.len - 1] as usize };
        let end = start + name.len();
        if self.len == self.ends.len() || end > self.text.len() {
            return Err(JobError::Room);
        }
        self.text[start..end].copy_from_slice(name.as_bytes());
        self.ends[self.len] = end as u32;
        self.len += 1;
        self.slots[at] = self.len as u32;
        Ok(self.len - 1)
    }
}

/// The heap in the child, as the source of a snapshot.
struct Stream<'r, 'w, M: ObjectModel> {
    world: &'r World<'w, M>,
    prepared: &'r Prepared,
    tracer: &'r mut Tracer,
    names: NameNumbers<'r>,
    /// A bit for each granule: an object is there.
    live: &'r [u64],
    /// For each page: the objects on the pages before.
    before: &'r [u32],
    /// For each place: the references to the object that other objects hold and count.
    references: &'r mut [u32],
    /// For each place: the references of the object.
    edges: &'r mut [u32],
    /// A bit for each place: the object is held from outside, or owns bytes outside the heap.
    held: &'r mut [u64],
    external: &'r mut [u64],
    totals: SnapshotTotals,
}

impl<'r, 'w, M: ObjectModel> Stream<'r, 'w, M> {
    /// The bytes of the room for a heap with so many pages.
    fn room(pages: usize) -> usize {
        let granules = pages * PAGE_GRANULES;
        // An object has at least a granule.
        let tables = granules / 8 + 4 * pages + (8 + 1) * granules;
        tables + 12 * MOST_NAMES + NAME_BYTES + (1 << 16)
    }

    /// Finds the objects, and counts their references.
    fn new(
        world: &'r World<'w, M>,
        prepared: &'r Prepared,
        tracer: &'r mut Tracer,
        room: &'r ChildRoom,
    ) -> Result<Self, JobError> {
        let space = &world.core().space;
        let pages = space.high_water();
        let (live, before) = (room.take(pages * PAGE_WORDS)?, room.take(pages)?);
        let mut objects = 0_usize;
        for (page, before) in before.iter_mut().enumerate() {
            *before = objects as u32;
            for granule in space.objects(page) {
                if let Some(object) = stopped_at(world, granule)
                    && state_of(world, object) & state::DYING == 0
                {
                    set(live, granule);
                    objects += 1;
                }
            }
        }
        let words = objects.div_ceil(WORD);
        let mut this = Self {
            world,
            prepared,
            tracer,
            names: NameNumbers::new(room)?,
            live,
            before,
            references: room.take(objects)?,
            edges: room.take(objects)?,
            held: room.take(words)?,
            external: room.take(words)?,
            totals: SnapshotTotals { objects, ..SnapshotTotals::default() },
        };
        for (place, granule) in bits(this.live).enumerate() {
            let Some(object) = stopped_at(world, granule) else { continue };
            if this.external_bytes(object) > 0 {
                set(this.external, place);
                this.totals.externals += 1;
            }
            let counted = this.trace(object)?;
            let mut edges = 0;
            for at in 0..this.tracer.edges().len() {
                if let Some(target) = this.place(this.tracer.edges()[at]) {
                    edges += 1;
                    let references = &mut this.references[target];
                    *references = references.saturating_add(u32::from(at < counted));
                }
            }
            this.edges[place] = edges;
            this.totals.references += edges as usize;
        }
        for (place, granule) in bits(this.live).enumerate() {
            let Some(object) = stopped_at(world, granule) else { continue };
            let (outside, is_counted) = this.outside(object, place, granule);
            let is_root = prepared.roots.binary_search(&(granule as u32)).is_ok();
            if outside > 0 || !is_counted || is_root {
                set(this.held, place);
                this.totals.held += 1;
            }
        }
        Ok(this)
    }

    /// The place of the object at an address, which lies in the heap.
    fn place(&self, address: usize) -> Option<usize> {
        let granule = self.world.core().space.granule(address);
        if granule / WORD >= self.live.len() || !is_set(self.live, granule) {
            return None;
        }
        let (page, word) = (granule / PAGE_GRANULES, granule / WORD);
        let on_page = self.live[page * PAGE_WORDS..word].iter().map(|word| word.count_ones());
        let in_word = self.live[word] & ((1 << (granule % WORD)) - 1);
        Some((self.before[page] + on_page.sum::<u32>() + in_word.count_ones()) as usize)
    }

    /// Traces an object. Returns the number of its references that are counted, which come first.
    fn trace(&mut self, object: Stopped<'_>) -> Result<usize, JobError> {
        let (mask, value) = Selection::All.bits();
        let tracer = &mut *self.tracer;
        tracer.begin(object.object());
        tracer.forget_uncounted();
        if state_of(self.world, object) & mask != value {
            return Ok(0);
        }
        DescribeOf::<M>::fields(&self.world.core().model, object, tracer);
        if tracer.take_unreadable() {
            tracer.begin(object.object());
        }
        let counted = tracer.edges().len();
        tracer.field("uncounted");
        tracer.add_uncounted(|_| true).map_err(|_| JobError::Room)?;
        tracer.lost_nothing().map_err(|_| JobError::Room)?;
        Ok(counted)
    }

    fn external_bytes(&mut self, object: Stopped<'_>) -> usize {
        let tracer = &mut *self.tracer;
        tracer.begin(object.object());
        let bytes = DescribeOf::<M>::external_bytes(&self.world.core().model, object, tracer);
        tracer.take_unreadable();
        bytes
    }

    /// The references from outside, and whether the object has a count.
    fn outside(&self, object: Stopped<'_>, place: usize, granule: usize) -> (usize, bool) {
        let model = &self.world.core().model;
        let Count::Exact(count) = model.count(object) else { return (0, false) };
        if DescribeOf::<M>::is_part(model, object) {
            return (0, true);
        }
        let claims = self.prepared.claims.contains(object.object(), state_of(self.world, object));
        let count = count + self.prepared.adjustments.of(granule) - i64::from(claims);
        let outside = count - i64::from(self.references[place]);
        (usize::try_from(outside).unwrap_or(0), true)
    }
}

/// A name for which no memory was taken, because the child may take none.
#[expect(clippy::ptr_arg, reason = "it asks which of the two it is")]
fn borrowed<'a>(name: &'a Cow<'static, str>) -> Result<&'a str, JobError> {
    match name {
        Cow::Borrowed(name) => Ok(name),
        Cow::Owned(_) => Err(JobError::Room),
    }
}

fn state_of<M: ObjectModel>(world: &World<'_, M>, object: Stopped<'_>) -> u8 {
    scope::state_of(&world.core().space, object.object()).get()
}

impl<M: ObjectModel> SnapshotSource for Stream<'_, '_, M> {
    type Error = JobError;

    fn totals(&self) -> SnapshotTotals {
        self.totals
    }

    fn nodes(
        &mut self,
        mut row: impl FnMut(SnapshotNode) -> Result<(), JobError>,
    ) -> Result<(), JobError> {
        let world = self.world;
        for (place, granule) in bits(self.live).enumerate() {
            let Some(object) = stopped_at(world, granule) else { continue };
            let has_external = is_set(self.external, place);
            let external_bytes = if has_external { self.external_bytes(object) } else { 0 };
            if has_external && external_bytes == 0 {
                return Err(JobError::Changed);
            }
            let type_name = world.core().model.type_name(object.live());
            if type_name == NO_WORDS {
                return Err(JobError::Room);
            }
            let name = self.names.number(borrowed(&type_name)?)?;
            row(SnapshotNode {
                name,
                number: granule as u32,
                bytes: bytes_of(world, object, granule),
                external_bytes,
                edges: self.edges[place] as usize,
                outside: self.outside(object, place, granule).0,
                is_held: is_set(self.held, place),
                is_old: !ObjectFlags::of(state_of(world, object)).is_young(),
            })?;
        }
        Ok(())
    }

    fn edges(
        &mut self,
        mut row: impl FnMut(SnapshotEdge) -> Result<(), JobError>,
    ) -> Result<(), JobError> {
        for (place, granule) in bits(self.live).enumerate() {
            let Some(object) = stopped_at(self.world, granule) else { continue };
            self.trace(object)?;
            let (mut field, mut name, mut index) = (0, None, 0);
            for at in 0..self.tracer.edges().len() {
                while let Some((before, text)) = self.tracer.fields().get(field)
                    && *before <= at
                {
                    let text = borrowed(text)?;
                    name = if text.is_empty() { None } else { Some(self.names.number(text)?) };
                    field += 1;
                }
                if let Some(target) = self.place(self.tracer.edges()[at]) {
                    row(SnapshotEdge::Reference { index, name, target })?;
                    index += 1;
                }
            }
            if index != self.edges[place] as usize {
                return Err(JobError::Changed);
            }
            row(SnapshotEdge::End { has_external: is_set(self.external, place) })?;
        }
        Ok(())
    }

    fn strings(
        &self,
        mut row: impl FnMut(&dyn fmt::Display) -> Result<(), JobError>,
    ) -> Result<(), JobError> {
        (0..self.names.len).try_for_each(|number| row(&self.names.name(number)))
    }
}

/// Clones a child that writes the heap into a file. Its answer is the number of objects.
pub(super) fn begin<M: ObjectModel>(
    m: &ModelMutator<M>,
    part: &PartFile,
) -> Result<Result<Working, NoAnswer>, Fault> {
    if !child::is_possible() {
        return Ok(Err(NoAnswer::Refused(io::ErrorKind::Unsupported.into())));
    }
    let (start, bytes) = m.core().space.bounds();
    // Both before the stop, from the program's allocator.
    let tracer = Tracer::fixed(start, bytes, MOST_REFERENCES, MOST_FIELDS);
    let to = PieceWriter::new(&part.file).map_err(|_| NoMemory);
    let (Ok(mut tracer), Ok(mut to)) = (tracer, to) else {
        return Ok(Err(NoAnswer::Refused(io::ErrorKind::OutOfMemory.into())));
    };
    // Of this process, and not of the child.
    let stamp = ProcessStamp::new();
    stopped(m, |world| {
        let prepared = Prepared::of(world)?;
        Ok(child::clone_for(world, (child::LIMIT, Bound::Thread), |world| {
            stream(world, &prepared, &mut tracer, |source| {
                write_from(source, stamp, &mut to)?;
                Ok(to.flush()?)
            })
        }))
    })
}

/// Calls `write` with the heap as its source. Returns the number of objects.
fn stream<M: ObjectModel>(
    world: &World<'_, M>,
    prepared: &Prepared,
    tracer: &mut Tracer,
    write: impl FnOnce(&mut Stream<'_, '_, M>) -> Result<(), JobError>,
) -> Result<u64, JobError> {
    let room = ChildRoom::new(Stream::<M>::room(world.core().space.high_water()))?;
    guard_traversal(world, tracer, |tracer| {
        let mut stream = Stream::new(world, prepared, tracer, &room)?;
        write(&mut stream)?;
        Ok(stream.totals.objects as u64)
    })
    .unwrap_or(Err(JobError::Panic))
}

/// Why there is no file.
#[derive(Debug)]
pub enum NoSnapshot {
    /// The heap cannot be stopped, or memory is refused.
    Heap(Fault),
    /// The file cannot be written.
    File(io::Error),
}

impl From<Fault> for NoSnapshot {
    fn from(fault: Fault) -> Self {
        Self::Heap(fault)
    }
}

impl From<io::Error> for NoSnapshot {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

/// A snapshot whose stop is over.
pub(super) struct PendingSnapshot {
    part: PartFile,
    by: Writer,
}

enum Writer {
    Child(Working),
    /// This thread.
    Copy(HeapGraph),
}

/// A file that no child has written.
pub(super) struct WithoutChild {
    path: PathBuf,
    reason: NoAnswer,
}

/// Why a snapshot was not finished.
pub(super) enum Unfinished {
    File(io::Error),
    Child(WithoutChild),
}

impl Unfinished {
    pub(super) fn into_error(self) -> NoSnapshot {
        NoSnapshot::File(match self {
            Self::File(error) => error,
            Self::Child(without) => io::Error::other(without.reason.to_string()),
        })
    }
}

impl From<io::Error> for Unfinished {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl WithoutChild {
    /// Copies the heap in a stop instead.
    pub(super) fn copied<M: ObjectModel>(
        self,
        m: &mut ModelMutator<M>,
    ) -> Result<PendingSnapshot, NoSnapshot> {
        let Self { path, reason } = self;
        event::no_child(&m.core().name, &reason);
        let part = m.detach_if_possible(|| PartFile::new(&path))?;
        Ok(PendingSnapshot { part, by: Writer::Copy(m.try_graph()?) })
    }
}

impl PendingSnapshot {
    pub(super) fn begin<M: ObjectModel>(
        m: &mut ModelMutator<M>,
        path: &Path,
    ) -> Result<Self, NoSnapshot> {
        may_stop(m)?;
        // No stop waits for the file system.
        let part = m.detach_if_possible(|| PartFile::new(path))?;
        match begin(m, &part)? {
            Ok(child) => Ok(Self { part, by: Writer::Child(child) }),
            Err(reason) => {
                event::no_child(&m.core().name, &reason);
                Ok(Self { part, by: Writer::Copy(m.try_graph()?) })
            }
        }
    }

    /// Waits for the child, or writes the file. Returns the number of objects. The thread is
    /// detached, because this takes long.
    pub(super) fn finish(self) -> Result<usize, Unfinished> {
        let Self { part, by } = self;
        let objects = match by {
            Writer::Child(child) => match child.wait() {
                Ok(objects) => objects as usize,
                Err(NoAnswer::Failed(JobError::System(code))) => {
                    return Err(io::Error::from_raw_os_error(code).into());
                }
                Err(reason) => {
                    let path = part.path();
                    return Err(Unfinished::Child(WithoutChild { path, reason }));
                }
            },
            Writer::Copy(graph) => {
                graph.write_snapshot(&part.file)?;
                graph.objects()
            }
        };
        part.complete()?;
        Ok(objects)
    }
}
