//! Objects and bytes by type.
//!
//! A process that grows for a week shows it in two censuses, because the types that grew are few.
//! For example, `Session` had 10 objects in the morning and has 1,000 now, so [`Census::since`]
//! lists it first. A [`LeakWatch`] repeats that: a type that has grown in each of several looks,
//! with objects that are old, is a suspect.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;

use crate::base::fallible::{self, NoMemory};
use crate::diagnose::survey::{SurveyVisitor, Surveyed, TypeNames};

/// The objects of a heap by type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// The types, those with the most bytes first.
    pub types: Vec<TypeCensus>,
}

/// The objects of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeCensus {
    /// The name of the type.
    pub type_name: String,
    /// The objects that are alive.
    pub objects: usize,
    /// Their bytes in the heap.
    pub bytes: usize,
    /// Their bytes outside the heap.
    pub external_bytes: usize,
    /// Those among them that have survived a collection, or were promoted. 0 in a heap whose model
    /// [lists its objects](crate::model::Lists).
    pub old: usize,
    /// Those among them that are held from outside, and not only by other objects.
    pub held: usize,
    /// The references from outside to all of them.
    pub outside: usize,
}

/// How a type has grown from one census to another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// The name of the type.
    pub type_name: String,
    /// How many more objects there are; negative if there are fewer.
    pub objects: isize,
    /// How many more bytes they have, in the heap and outside.
    pub bytes: isize,
    /// How many more of them are held from outside.
    pub held: isize,
}

/// The part of one worker, by type number.
#[derive(Default)]
pub(super) struct CensusPart(Vec<TypeCensus>);

impl SurveyVisitor for CensusPart {
    fn object(&mut self, object: &Surveyed<'_>) -> Result<(), NoMemory> {
        let number = object.type_number as usize;
        if number >= self.0.len() {
            self.0.try_reserve(number + 1 - self.0.len())?;
            self.0.resize_with(number + 1, TypeCensus::default);
        }
        let row = &mut self.0[number];
        row.objects += 1;
        row.bytes += object.bytes;
        row.external_bytes = row.external_bytes.saturating_add(object.external_bytes);
        row.old += usize::from(!object.flags.is_young());
        row.held += usize::from(object.is_held);
        row.outside += object.outside;
        Ok(())
    }
}

impl Census {
    pub(super) fn of(parts: Vec<CensusPart>, names: &TypeNames) -> Result<Self, NoMemory> {
        let mut types = fallible::collect((0..names.len()).map(|_| TypeCensus::default()))?;
        for CensusPart(rows) in parts {
            for (sum, row) in types.iter_mut().zip(rows) {
                sum.objects += row.objects;
                sum.bytes += row.bytes;
                sum.external_bytes = sum.external_bytes.saturating_add(row.external_bytes);
                sum.old += row.old;
                sum.held += row.held;
                sum.outside += row.outside;
            }
        }
        for (number, row) in types.iter_mut().enumerate() {
            row.type_name = fallible::owned(names.name(number as u32))?;
        }
        types.retain(|row| row.objects > 0);
        // The names differ, so that the order is the same each time.
        types.sort_unstable_by(|a, b| {
            b.all_bytes().cmp(&a.all_bytes()).then_with(|| a.type_name.cmp(&b.type_name))
        });
        Ok(Self { types })
    }

    /// The row of a type, if it has objects.
    pub fn of_type(&self, type_name: &str) -> Option<&TypeCensus> {
        self.types.iter().find(|row| row.type_name == type_name)
    }

    /// The sums of all types, without a name.
    pub fn total(&self) -> TypeCensus {
        self.types.iter().fold(TypeCensus::default(), |sum, row| TypeCensus {
            type_name: String::new(),
            objects: sum.objects + row.objects,
            bytes: sum.bytes + row.bytes,
            external_bytes: sum.external_bytes.saturating_add(row.external_bytes),
            old: sum.old + row.old,
            held: sum.held + row.held,
            outside: sum.outside + row.outside,
        })
    }

    /// What has changed since an earlier census, the largest growth of bytes first. Types with the
    /// same objects, bytes and held objects are left out.
    pub fn since(&self, earlier: &Self) -> Vec<Growth> {
        let mut grown: HashMap<&str, Growth> = HashMap::new();
        for (census, sign) in [(self, 1), (earlier, -1)] {
            for row in &census.types {
                let growth = grown.entry(&row.type_name).or_insert_with(|| Growth {
                    type_name: row.type_name.clone(),
                    objects: 0,
                    bytes: 0,
                    held: 0,
                });
                growth.objects += sign * row.objects as isize;
                growth.bytes += sign * row.all_bytes() as isize;
                growth.held += sign * row.held as isize;
            }
        }
        let mut all: Vec<Growth> = grown
            .into_values()
            .filter(|growth| (growth.objects, growth.bytes, growth.held) != (0, 0, 0))
            .collect();
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.type_name.cmp(&b.type_name)));
        all
    }
}

impl TypeCensus {
    fn all_bytes(&self) -> usize {
        self.bytes.saturating_add(self.external_bytes)
    }
}

/// A table, with a line for each type, and the sums.
impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["objects", "bytes", "external", "old", "held", "outside"];
        for head in heads {
            write!(f, "{head:>12} ")?;
        }
        writeln!(f, "type")?;
        let total = TypeCensus { type_name: "all types".to_owned(), ..self.total() };
        for row in self.types.iter().chain([&total]) {
            let TypeCensus { objects, bytes, external_bytes, old, held, outside, .. } = row;
            for number in [objects, bytes, external_bytes, old, held, outside] {
                write!(f, "{number:>12} ")?;
            }
            writeln!(f, "{}", row.type_name)?;
        }
        Ok(())
    }
}

/// Compares censuses that a program takes from time to time, and names the types that seem to leak.
///
/// ```
/// use standstill::diagnose::LeakWatch;
/// use standstill::{Heap, Trace};
///
/// #[derive(Trace)]
/// struct Session(u64);
///
/// let heap = Heap::new();
/// let mut m = heap.attach();
/// let mut forgotten = Vec::new();
/// let mut watch = LeakWatch::new(3);
/// let mut suspects = Vec::new();
/// for hour in 0..4 {
///     forgotten.extend((0..100).map(|number| m.alloc(Session(100 * hour + number))));
///     m.collect();
///     suspects = watch.look(m.census());
/// }
/// assert_eq!(suspects[0].grown.objects, 300);
/// assert!(suspects[0].grown.type_name.ends_with("Session"));
/// ```
#[derive(Debug)]
pub struct LeakWatch {
    looks: usize,
    censuses: Vec<Census>,
}

/// A type that seems to leak.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Suspect {
    /// How it has grown over all looks.
    pub grown: Growth,
    /// Its objects now.
    pub now: TypeCensus,
}

impl LeakWatch {
    /// A watch that suspects a type after it has grown `looks` times in a row. Fewer than 2 are
    /// taken as 2, because every type grows once.
    pub fn new(looks: usize) -> Self {
        Self { looks: looks.max(2), censuses: Vec::new() }
    }

    /// Adds a census, and returns the suspects, the largest growth first: the types with more
    /// objects in each of the last looks than in the one before, more than half of which are old
    /// now. (In a heap without any old object, age does not matter.) A program that starts grows
    /// everywhere, so take the first look later.
    pub fn look(&mut self, census: Census) -> Vec<Suspect> {
        if self.censuses.len() > self.looks {
            self.censuses.remove(0);
        }
        self.censuses.push(census);
        let [first, .., last] = &self.censuses[..] else { return Vec::new() };
        if self.censuses.len() <= self.looks {
            return Vec::new();
        }
        let objects =
            |census: &Census, name: &str| census.of_type(name).map_or(0, |row| row.objects);
        let grows = |name: &str| {
            self.censuses.windows(2).all(|pair| objects(&pair[0], name) < objects(&pair[1], name))
        };
        let has_ages = last.total().old > 0;
        let suspect = |grown: Growth| {
            let now = last.of_type(&grown.type_name)?;
            let is_old = !has_ages || 2 * now.old > now.objects;
            (is_old && grows(&grown.type_name)).then(|| Suspect { now: now.clone(), grown })
        };
        last.since(first).into_iter().filter_map(suspect).collect()
    }
}
