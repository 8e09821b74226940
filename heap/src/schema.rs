//! `snapshot.meta`: which number of a node or an edge means what.
//!
//! The flat arrays of a snapshot hold a fixed count of numbers a node (an edge); their names and
//! the names of the types stand in the meta, and V8 has changed both over the years. So positions
//! and type numbers are looked up, never assumed.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use crate::snapshot::{Facts, is_indexed};

/// The meaning of a number of a node. An `Ignored` one may have any value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NodeField {
    Type,
    Name,
    Size,
    EdgeCount,
    Id,
    Outside,
    Old,
    Ignored,
}

/// The meaning of a number of an edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum EdgeField {
    Type,
    Label,
    Target,
    Ignored,
}

/// The meaning of the numbers, and their count according to the header.
#[derive(Debug)]
pub(crate) struct Schema {
    pub(crate) node: Vec<NodeField>,
    pub(crate) node_kinds: Vec<String>,
    pub(crate) edge: Vec<EdgeField>,
    pub(crate) edge_kinds: Vec<String>,
    /// The kind of an edge that holds nothing alive, if there is one.
    pub(crate) weak: Option<u8>,
    /// For each kind of edges: whether their labels are no strings.
    pub(crate) is_indexed: Vec<bool>,
    pub(crate) nodes: u32,
    pub(crate) edges: u32,
    pub(crate) process: Option<String>,
}

/// Node indices share a word with the mark of a weak edge.
const MOST_NODES: u64 = 1 << 31;
const MOST_EDGES: u64 = u32::MAX as u64;

impl Schema {
    /// Judges the header; the error is a reason that names the field.
    pub(crate) fn new(header: &Header) -> Result<Self, String> {
        let Header { meta, node_count, edge_count, process } = header;
        let node = roles(
            "node_fields",
            &meta.node_fields,
            NodeField::Ignored,
            &[
                ("type", NodeField::Type),
                ("name", NodeField::Name),
                ("self_size", NodeField::Size),
                ("edge_count", NodeField::EdgeCount),
            ],
            &[("id", NodeField::Id), ("outside", NodeField::Outside), ("old", NodeField::Old)],
        )?;
        let edge = roles(
            "edge_fields",
            &meta.edge_fields,
            EdgeField::Ignored,
            &[("type", EdgeField::Type), ("to_node", EdgeField::Target)],
            &[("name_or_index", EdgeField::Label)],
        )?;
        let node_kinds = type_names("node_types", &meta.node_types, &node, NodeField::Type)?;
        let edge_kinds = type_names("edge_types", &meta.edge_types, &edge, EdgeField::Type)?;
        let nodes = claim("node_count", node_count, MOST_NODES)?;
        if nodes == 0 {
            return Err("node_count is 0: there is no root".into());
        }
        // A list of the meta has at most 256 entries, so a number of one is a byte.
        let weak = edge_kinds.iter().position(|name| name == "weak").map(|at| at as u8);
        // Without labels each is 0, as an index.
        let is_labelled = edge.contains(&EdgeField::Label);
        let is_index = |kind: &String| !is_labelled || is_indexed(kind);
        Ok(Self {
            node,
            node_kinds: node_kinds.to_vec(),
            edge,
            edge_kinds: edge_kinds.to_vec(),
            weak,
            is_indexed: edge_kinds.iter().map(is_index).collect(),
            nodes,
            edges: claim("edge_count", edge_count, MOST_EDGES)?,
            process: process.clone(),
        })
    }

    pub(crate) fn facts(&self) -> Facts {
        let has = |field| self.node.contains(&field);
        Facts {
            ids: has(NodeField::Id),
            outside: has(NodeField::Outside),
            old: has(NodeField::Old),
        }
    }
}

/// The role of each field; those in `wanted` must stand there once, and those in `known` at most
/// once.
fn roles<R: Copy>(
    list: &str,
    fields: &Short<String>,
    other: R,
    wanted: &[(&str, R)],
    known: &[(&str, R)],
) -> Result<Vec<R>, String> {
    for (at, (name, _)) in wanted.iter().chain(known).enumerate() {
        match fields.0.iter().filter(|field| field == name).count() {
            1 => {}
            0 if at < wanted.len() => return Err(format!("meta.{list} has no {name:?}")),
            0 => {}
            n => return Err(format!("meta.{list} has {name:?} {n} times")),
        }
    }
    let role = |field: &String| {
        let mut all = wanted.iter().chain(known);
        all.find(|(name, _)| name == field).map_or(other, |(_, role)| *role)
    };
    Ok(fields.0.iter().map(role).collect())
}

/// The names of the types: the entry of `types` that stands where the field `Type` does.
fn type_names<'h, R: PartialEq>(
    list: &str,
    types: &'h Short<TypeSpec>,
    roles: &[R],
    wanted: R,
) -> Result<&'h [String], String> {
    let at = roles.iter().position(|role| *role == wanted);
    match at.and_then(|at| types.0.get(at)) {
        Some(TypeSpec::Names(names)) => Ok(&names.0),
        _ => Err(format!(
            "meta.{list} does not list the names of the types where the field \"type\" stands"
        )),
    }
}

/// A count that the header claims. It sizes nothing: the arrays must bear it out.
fn claim(name: &str, count: &Number, most: u64) -> Result<u32, String> {
    match count {
        Number::Whole(n) if *n <= most => Ok(*n as u32),
        Number::Whole(n) => Err(format!("{name} is {n}, more than {most}, the most that is read")),
        Number::Other(text) => Err(format!("{name} is {text}, not a count")),
    }
}

/// The counts that standstill writes at the end of a file.
#[derive(Debug, Deserialize)]
pub(crate) struct Trailer {
    nodes: Number,
    edges: Number,
    strings: Number,
}

impl Trailer {
    /// The error is a reason that names the count that is not the one of the file.
    pub(crate) fn check(&self, (nodes, edges, strings): (u64, u64, u64)) -> Result<(), String> {
        let pairs = [
            ("nodes", &self.nodes, nodes),
            ("edges", &self.edges, edges),
            ("strings", &self.strings, strings),
        ];
        for (name, claimed, there) in pairs {
            match claimed {
                Number::Whole(claimed) if *claimed == there => {}
                Number::Whole(claimed) => {
                    return Err(format!("claims {claimed} {name}, but there are {there}"));
                }
                Number::Other(claimed) => return Err(format!("{name} is {claimed}, not a count")),
            }
        }
        Ok(())
    }
}

/// The value of `snapshot`, as it stands in the file.
#[derive(Debug, Deserialize)]
pub(crate) struct Header {
    meta: Meta,
    node_count: Number,
    edge_count: Number,
    process: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Meta {
    node_fields: Short<String>,
    node_types: Short<TypeSpec>,
    edge_fields: Short<String>,
    edge_types: Short<TypeSpec>,
}

/// A number of the file. It must be an integer only where its value is used.
#[derive(Debug)]
pub(crate) enum Number {
    Whole(u64),
    Other(String),
}

impl<'de> Deserialize<'de> for Number {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;

        impl Visitor<'_> for NumberVisitor {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            #[inline]
            fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number::Whole(number))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
                Ok(u64::try_from(number)
                    .map_or_else(|_| Number::Other(number.to_string()), Number::Whole))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Number, E> {
                Ok(Number::Other(format!("{number:?}")))
            }
        }

        deserializer.deserialize_u64(NumberVisitor)
    }
}

/// The most entries of a list in the meta. V8 writes 16 at most.
const MOST_ENTRIES: usize = 256;

/// A list that is refused when it is long.
#[derive(Debug)]
struct Short<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Short<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShortVisitor(PhantomData))
    }
}

struct ShortVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ShortVisitor<T> {
    type Value = Short<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Short<T>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = list.next_element()? {
            if entries.len() == MOST_ENTRIES {
                return Err(A::Error::custom(format_args!(
                    "a list of more than {MOST_ENTRIES} entries"
                )));
            }
            entries.push(entry);
        }
        Ok(Short(entries))
    }
}

/// The entry of `node_types` or `edge_types` for one field: the names that its numbers stand for,
/// or a word like `"number"`.
#[derive(Debug)]
enum TypeSpec {
    Names(Short<String>),
    Word,
}

impl<'de> Deserialize<'de> for TypeSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TypeSpecVisitor;

        impl<'de> Visitor<'de> for TypeSpecVisitor {
            type Value = TypeSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of names or a word")
            }

            fn visit_str<E: Error>(self, _word: &str) -> Result<TypeSpec, E> {
                Ok(TypeSpec::Word)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<TypeSpec, A::Error> {
                ShortVisitor(PhantomData).visit_seq(list).map(TypeSpec::Names)
            }
        }

        deserializer.deserialize_any(TypeSpecVisitor)
    }
}
