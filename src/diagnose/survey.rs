//! The primitive of all answers: every object of a heap, with its references, in one stop.
//!
//! The program could ask for the referents of each object, but each call is a stop, and no call
//! tells who outside of the heap holds an object. A survey visits all objects in one stop, on all
//! workers of the heap, and knows the references from outside, because the collector's phase
//! `Count` finds them.
//!
//! For example, a handle refers to A, and A to B. Counting subtracts 1 from the byte of each, for
//! their counts, and adds 1 to that of B, for the edge from A. So A has 1 reference from outside, B
//! has none, and the visit of A names its edge to B.
//!
//! # Steps
//!
//! 1. The model does its deferred drops, and the world stops. A merge makes counts exact.
//! 2. All tracked objects are candidates, also frozen ones, and those that a running collection is
//!    about to clear. Their references are counted.
//! 3. Each page is visited by one worker: all live objects on it, in the order of memory. A tracked
//!    object is traversed once more, because counting keeps no edges. If some objects are serial,
//!    one worker visits all pages.
//! 4. The tables are zeroed, and the world resumes. Objects that the merge found dead are
//!    destroyed.
//!
//! An untracked object may still be under construction, so that its fields cannot be read. So it is
//! visited without references, and what it refers to seems to be held from outside. The same holds
//! for an object with a field that is locked.
//!
//! A collection that is between its stops, or clears its garbage, has references of its own, which
//! are subtracted ([`ClaimedObjects`]).

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write};

use crate::base::fallible::{self, NoMemory};
use crate::base::sync::{AtomicBool, Mutex, Ordering};
use crate::collect::calls::{self, Abandoned, guard_traversal};
use crate::collect::collection::{destroy_merged, merge_unmeasured, prepare};
use crate::collect::listing;
use crate::collect::scope::{Scope, stopped_at};
use crate::collect::search::Search;
use crate::heap::model::{Count, ObjectModel};
use crate::heap::mutator::ModelMutator;
use crate::heap::parts::*;
use crate::heap::world::World;
use crate::memory::shape::PageKind;
use crate::model::fork::ClaimedObjects;
use crate::object::live::Stopped;
use crate::object::state::{self, ObjectFlags};
use crate::object::tracer::Tracer;
use crate::report::error::Fault;
use crate::safepoint::StopError;

/// An object, as a survey visits it.
#[derive(Debug)]
pub struct Surveyed<'a> {
    /// Its address.
    pub address: usize,
    /// A number that no other object of the heap has, for as long as this one is alive.
    pub number: u32,
    /// The name of its type.
    pub type_name: &'a str,
    /// The number of that name in the [`TypeNames`] of the survey.
    pub type_number: u32,
    /// The bytes of the object, with header and rounding.
    pub bytes: usize,
    /// The bytes outside the heap that it owns, if its model tells them.
    pub external_bytes: usize,
    /// The number of references to it. `None`: it has no count, because it is immortal, or is kept
    /// alive from outside.
    pub count: Option<usize>,
    /// The references to it that no surveyed object holds: those of handles, of the stack, of
    /// untracked objects. Always 0 without a count.
    pub outside: usize,
    /// Whether something outside keeps it alive: a reference, its lack of a count, or a root that
    /// the model has reported.
    pub is_held: bool,
    /// Its state.
    pub flags: ObjectFlags,
    /// Empty: it has none, or the survey has not asked for it.
    pub(super) label: &'a str,
    edges: &'a [usize],
    fields: &'a [(usize, Cow<'static, str>)],
}

impl Surveyed<'_> {
    /// Its references, each with the address of the target and the name of the field, which is
    /// empty if it is unknown. A target may have been left out of the survey, because its
    /// destruction has begun.
    pub fn references(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut fields = self.fields.iter().peekable();
        let mut name = "";
        self.edges.iter().enumerate().map(move |(at, &edge)| {
            while let Some((_, next)) = fields.next_if(|&&(before, _)| before <= at) {
                name = next;
            }
            (edge, name)
        })
    }
}

/// The names of the types in a survey, by number.
#[derive(Clone, Debug, Default)]
pub struct TypeNames {
    names: Vec<Cow<'static, str>>,
}

impl TypeNames {
    /// The name of a type. Types with the same name have one number.
    pub fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", |name| name)
    }

    /// The number of types.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// The numbers of type names.
#[derive(Default)]
struct TypeNumbers {
    numbers: HashMap<Cow<'static, str>, u32>,
    names: Vec<Cow<'static, str>>,
}

/// What a worker keeps about types, so that it rarely needs the lock of [`TypeNumbers`].
#[derive(Default)]
struct KnownTypes {
    /// By address and length of a name that the program never frees.
    fixed: HashMap<(usize, usize), u32>,
    /// Names that were made for one object.
    made: HashMap<String, u32>,
}

impl KnownTypes {
    /// The number of a name, which is `fixed` if the program never frees it.
    fn number(
        &mut self,
        name: &str,
        fixed: Option<&'static str>,
        shared: &Mutex<TypeNumbers>,
    ) -> Result<u32, NoMemory> {
        let key = (name.as_ptr() as usize, name.len());
        let known = if fixed.is_some() { self.fixed.get(&key) } else { self.made.get(name) };
        if let Some(&number) = known {
            return Ok(number);
        }
        self.fixed.try_reserve(1)?;
        self.made.try_reserve(1)?;
        let number = shared.lock().number(name, fixed)?;
        match fixed {
            Some(_) => self.fixed.insert(key, number),
            None => self.made.insert(fallible::owned(name)?, number),
        };
        Ok(number)
    }
}

impl TypeNumbers {
    fn number(&mut self, name: &str, fixed: Option<&'static str>) -> Result<u32, NoMemory> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let kept = || -> Result<Cow<'static, str>, NoMemory> {
            fixed.map_or_else(|| Ok(fallible::owned(name)?.into()), |fixed| Ok(fixed.into()))
        };
        let number = self.names.len() as u32;
        self.numbers.try_reserve(1)?;
        let key = kept()?;
        fallible::push(&mut self.names, kept()?)?;
        self.numbers.insert(key, number);
        Ok(number)
    }
}

/// The name of a survey in a fault.
const FUNCTION: &str = "survey";

/// What the visits of one worker have made.
pub(super) trait SurveyVisitor: Send {
    /// Visits an object. Objects of one page come one after the other, in the order of memory.
    fn object(&mut self, object: &Surveyed<'_>) -> Result<(), NoMemory>;
}

/// What a survey wants to know of each object, each with all before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wants {
    Objects,
    References,
    Labels,
}

/// The bytes of a label, without the ellipsis of one that was cut.
const LONGEST_LABEL: usize = 64;
const CUT: char = '…';

/// Keeps the beginning of a label, in memory that it has already.
struct LabelWriter<'a> {
    label: &'a mut String,
    is_cut: bool,
}

impl Write for LabelWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            self.is_cut |= self.label.len() + c.len_utf8() > LONGEST_LABEL;
            if self.is_cut {
                return Err(fmt::Error);
            }
            self.label.push(c);
        }
        Ok(())
    }
}

struct LabelOf<'a, M>(&'a M, Stopped<'a>);

impl<M: ObjectModel> fmt::Display for LabelOf<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        DescribeOf::<M>::label(self.0, self.1, f)
    }
}

/// Visits all objects, with a visitor from `new` for each worker, and returns the visitors.
pub(super) fn survey<M: ObjectModel, V: SurveyVisitor>(
    m: &ModelMutator<M>,
    wants: Wants,
    new: impl Fn() -> V + Sync,
) -> Result<(Vec<V>, TypeNames), Fault> {
    stopped(m, |world| in_stop(world, wants, &new))
}

/// An error if a mutator is lent, so that its thread reaches no safepoint.
pub(super) fn may_stop<M: ObjectModel>(m: &ModelMutator<M>) -> Result<(), Fault> {
    if m.is_lent() { Err(StopError::NoSafepoint.fault(FUNCTION)) } else { Ok(()) }
}

/// Calls `f` in a stop, when counts are exact and objects are listed.
pub(super) fn stopped<M: ObjectModel, T>(
    m: &ModelMutator<M>,
    f: impl FnOnce(&World<'_, M>) -> Result<T, Abandoned>,
) -> Result<T, Fault> {
    may_stop(m)?;
    prepare(m);
    let world = m.stop_here().map_err(|error| error.fault(FUNCTION))?;
    let mut dead = Vec::new();
    let result = listing::list(&world, usize::MAX).and_then(|()| {
        merge_unmeasured(&world, &mut dead)?;
        f(&world)
    });
    drop(world);
    destroy_merged(dead, m);
    calls::resumed(m);
    result.map_err(|abandoned| abandoned.fault(FUNCTION))
}

fn in_stop<M: ObjectModel, V: SurveyVisitor>(
    world: &World<'_, M>,
    wants: Wants,
    new: &(impl Fn() -> V + Sync),
) -> Result<(Vec<V>, TypeNames), Abandoned> {
    let space = &world.core().space;
    let claims = ClaimedObjects::of(world)?;
    let mut search = Search::begin(world, Scope::all(space)?, usize::MAX)?;
    let result = search.survey().and_then(|(mut roots, counts)| {
        roots.sort_unstable();
        let all = Mutex::new((Vec::new(), Ok(())));
        let (numbers, failed) = (Mutex::new(TypeNumbers::default()), AtomicBool::new(false));
        let share = search.share();
        let reach = |granule: usize| search.references(&counts, granule);
        // Serial objects are traversed on this thread alone.
        let workers = if SerialOf::<M>::PRESENT { 1 } else { search.workers };
        world.share(workers, &|worker| {
            let mut visits = Visits {
                world,
                claims: &claims,
                wants,
                label: String::new(),
                visitor: new(),
                known: KnownTypes::default(),
                numbers: &numbers,
            };
            let (start, bytes) = space.bounds();
            let mut tracer = Tracer::naming(start, bytes);
            let visited = guard_traversal(world, &mut tracer, |tracer| {
                for &page in share.of(worker).flatten() {
                    // Relaxed: a hint to finish.
                    if failed.load(Ordering::Relaxed) {
                        break;
                    }
                    for granule in space.objects(page as usize) {
                        let state = space.states()[granule].load(Ordering::Relaxed);
                        let entry = Entry {
                            granule,
                            state,
                            is_candidate: search.contains(state),
                            is_root: roots.binary_search(&(granule as u32)).is_ok(),
                            references: reach(granule),
                            adjustment: search.adjustment(granule),
                        };
                        visits.visit(entry, tracer)?;
                    }
                }
                Ok(())
            });
            let visited = visited.and_then(|visited: Result<(), NoMemory>| Ok(visited?));
            if visited.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            let (visitors, result) = &mut *all.lock();
            let kept = fallible::push(visitors, visits.visitor).map_err(Abandoned::from);
            let before = std::mem::replace(result, Ok(()));
            *result = before.and(visited).and(kept);
        });
        let (visitors, result) = std::mem::replace(&mut *all.lock(), (Vec::new(), Ok(())));
        let names = std::mem::take(&mut numbers.lock().names);
        result.map(|()| (visitors, TypeNames { names }))
    });
    search.close_survey();
    result
}

/// What the tables say of an object.
struct Entry {
    granule: usize,
    state: u8,
    is_candidate: bool,
    is_root: bool,
    references: i64,
    /// The correction of the count.
    adjustment: i64,
}

/// The visits of one worker.
struct Visits<'a, M: ObjectModel, V> {
    world: &'a World<'a, M>,
    claims: &'a ClaimedObjects,
    wants: Wants,
    /// That of the present object.
    label: String,
    visitor: V,
    known: KnownTypes,
    numbers: &'a Mutex<TypeNumbers>,
}

impl<M: ObjectModel, V: SurveyVisitor> Visits<'_, M, V> {
    fn visit(&mut self, entry: Entry, tracer: &mut Tracer) -> Result<(), NoMemory> {
        let Some(object) = stopped_at(self.world, entry.granule) else { return Ok(()) };
        // A dying object only waits for its destruction.
        if entry.state & state::DYING != 0 {
            return Ok(());
        }
        let model = &self.world.core().model;
        tracer.begin(object.object());
        let external_bytes = DescribeOf::<M>::external_bytes(model, object, tracer);
        tracer.take_unreadable();
        tracer.begin(object.object());
        if self.wants >= Wants::References && entry.is_candidate {
            DescribeOf::<M>::fields(model, object, tracer);
            if tracer.take_unreadable() {
                tracer.begin(object.object());
            }
            tracer.field("uncounted");
            tracer.add_uncounted(|_| true)?;
            tracer.lost_nothing()?;
        }
        // The reference of a running collection is not one of the program.
        let claims = i64::from(self.claims.contains(object.object(), entry.state));
        let count = match model.count(object) {
            Count::Exact(count) => Some(count + entry.adjustment - claims),
            Count::Outside | Count::Immortal => None,
        };
        // The count of a candidate is part of its sum already.
        let outside = match count {
            Some(_) if DescribeOf::<M>::is_part(model, object) => 0,
            Some(_) if entry.is_candidate => -entry.references - claims,
            Some(count) => count - entry.references,
            None => 0,
        };
        let outside = usize::try_from(outside).unwrap_or(0);
        let bytes = bytes_of(self.world, object, entry.granule);
        let type_name = model.type_name(object.live());
        // Its objects would be counted as those of another type.
        if type_name == fallible::NO_WORDS {
            return Err(NoMemory);
        }
        let fixed = match type_name {
            Cow::Borrowed(name) => Some(name),
            Cow::Owned(_) => None,
        };
        let type_number = self.known.number(&type_name, fixed, self.numbers)?;
        if self.wants == Wants::Labels {
            self.label.clear();
            self.label.try_reserve(LONGEST_LABEL + CUT.len_utf8())?;
            // What was written is the label.
            let mut writer = LabelWriter { label: &mut self.label, is_cut: false };
            _ = write!(writer, "{}", LabelOf(model, object));
            if writer.is_cut {
                self.label.push(CUT);
            }
        }
        self.visitor.object(&Surveyed {
            address: object.object().address(),
            // A heap has fewer than 2^32 granules.
            number: entry.granule as u32,
            type_name: &type_name,
            type_number,
            bytes,
            external_bytes,
            count: count.and_then(|count| usize::try_from(count).ok()),
            outside,
            is_held: outside > 0 || count.is_none() || entry.is_root,
            flags: ObjectFlags::of(entry.state),
            label: &self.label,
            edges: tracer.edges(),
            fields: tracer.fields(),
        })
    }
}

/// The bytes of an object, with header and rounding.
pub(super) fn bytes_of<M: ObjectModel>(
    world: &World<'_, M>,
    object: Stopped<'_>,
    granule: usize,
) -> usize {
    let core = world.core();
    DescribeOf::<M>::bytes(&core.model, object).unwrap_or_else(|| {
        let shape = core.space.page(granule / crate::memory::shape::PAGE_GRANULES).shape();
        match shape.kind() {
            PageKind::Foreign => 0,
            _ => shape.footprint().bytes(),
        }
    })
}
