//! A V8 heap snapshot, read into flat arrays.
//!
//! The file is one JSON object. Its `nodes` and `edges` are flat arrays of numbers, tens of
//! millions in a large heap, so nothing is parsed into a tree: serde passes number after
//! number, each is checked at once, and the needed ones are pushed. Every index and every count of
//! the file is checked against its content; none is used to reserve memory.
//!
//! V8 writes `snapshot`, `nodes`, `edges` and, near the end, `strings`; each is needed to check the
//! next, so any other order of these four is refused. standstill adds a `trailer` with the counts
//! of all three, which must agree; a file of V8 has none.

use std::collections::HashMap;
use std::io::BufReader;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::bad_input::Fault;
use crate::schema::{EdgeField, Header, NodeField, Number, Schema, Trailer};
use crate::snapshot::{EdgeArrays, Node, Snapshot, names_class};
use crate::source::{Source, fault_of};

/// Names of classes are kept up to this many characters: answers group by them, and those of
/// generic types are long.
const LONGEST_CLASS: usize = 4_000;
/// The same for other names: some nodes are named after the source text they hold.
const LONGEST_TEXT: usize = 80;

/// Reads `source` to its end, and checks all of it.
pub(crate) fn read(source: Source) -> Result<Snapshot, Fault> {
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 16, source));
    let mut reading = Reading { at: At::File, ..Reading::default() };
    let parsed = Document(&mut reading).deserialize(&mut json).and_then(|()| {
        reading.at = At::File;
        json.end()
    });
    parsed.map_err(|error| reading.fault(error))?;
    reading.finish().map_err(|reason| Fault::new("end of file", reason))
}

/// Where the reader is, for the place of a fault.
#[derive(Clone, Copy, Debug, Default)]
enum At {
    #[default]
    File,
    Section(Section),
    Element(Section, u64),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Section {
    Snapshot,
    Nodes,
    Edges,
    Strings,
    Trailer,
    #[serde(other)]
    Other,
}

impl Section {
    fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Nodes => "nodes",
            Self::Edges => "edges",
            Self::Strings => "strings",
            Self::Trailer => "trailer",
            Self::Other => "a section that is not read",
        }
    }
}

/// The parts that have been read.
#[derive(Debug, Default)]
struct Reading {
    at: At,
    /// A refusal that was raised here, not by the parser.
    refusal: Option<String>,
    schema: Option<Schema>,
    nodes: Option<Vec<Node>>,
    edges: Option<EdgeArrays>,
    /// What [`used_strings`](Self::used_strings) found, and the strings there.
    used: Vec<(u32, usize)>,
    strings: Option<Vec<Box<str>>>,
    /// The number of all strings of the file.
    string_count: u64,
    trailer: Option<Trailer>,
}

impl Reading {
    /// Raises a refusal through the parser.
    fn refuse<E: Error>(&mut self, reason: impl Into<String>) -> E {
        self.refusal = Some(reason.into());
        E::custom("refused")
    }

    /// The fault and its place, for an `error` of the parser.
    fn fault(&mut self, error: serde_json::Error) -> Fault {
        if error.is_io() {
            return fault_of(error.into());
        }
        let position = format!("line {} column {}", error.line(), error.column());
        let place = match self.at {
            At::File => position.clone(),
            At::Section(section) => format!("{} at {position}", section.name()),
            At::Element(section, index) => format!("{}[{index}] at {position}", section.name()),
        };
        // The parser puts the position behind its message; here it stands in the place already.
        let text = error.to_string();
        let message = text.strip_suffix(&format!(" at {position}")).unwrap_or(&text);
        let reason = match self.refusal.take() {
            Some(refusal) => refusal,
            None if error.is_eof() => format!("cut: {message}"),
            None if error.is_syntax() => format!("not JSON: {message}"),
            None => message.to_string(),
        };
        Fault::new(place, reason)
    }

    /// One section of the file, by its name.
    fn section<'de, A: MapAccess<'de>>(
        &mut self,
        section: Section,
        map: &mut A,
    ) -> Result<(), A::Error> {
        self.at = At::Section(section);
        let (twice, early) = match section {
            Section::Snapshot => (self.schema.is_some(), None),
            Section::Nodes => (self.nodes.is_some(), self.schema.is_none().then_some("snapshot")),
            Section::Edges => (self.edges.is_some(), self.nodes.is_none().then_some("nodes")),
            Section::Strings => (self.strings.is_some(), self.edges.is_none().then_some("edges")),
            Section::Trailer => {
                (self.trailer.is_some(), self.strings.is_none().then_some("strings"))
            }
            Section::Other => return map.next_value::<IgnoredAny>().map(drop),
        };
        if twice {
            return Err(self.refuse("stands in the file twice"));
        }
        if let Some(needed) = early {
            return Err(self.refuse(format!("stands before {needed}, which is needed to read it")));
        }
        match section {
            Section::Snapshot => {
                let header = map.next_value::<Header>()?;
                self.schema = Some(Schema::new(&header).map_err(|reason| self.refuse(reason))?);
            }
            Section::Nodes => {
                let mut nodes = Nodes::default();
                map.next_value_seed(Flat { reading: self, section, numbers: &mut nodes })?;
                self.nodes = Some(nodes.records);
            }
            Section::Edges => {
                let mut edges = Edges::default();
                map.next_value_seed(Flat { reading: self, section, numbers: &mut edges })?;
                self.edges = Some(edges.arrays);
                self.used = self.used_strings();
            }
            Section::Strings => map.next_value_seed(Strings(self))?,
            Section::Trailer => {
                let trailer = map.next_value::<Trailer>()?;
                let counts = self.schema.as_ref().map_or((0, 0), |s| (s.nodes, s.edges));
                let counts = (u64::from(counts.0), u64::from(counts.1), self.string_count);
                trailer.check(counts).map_err(|reason| self.refuse(reason))?;
                self.trailer = Some(trailer);
            }
            Section::Other => {}
        }
        Ok(())
    }

    /// The indices into `strings` that nodes and edges use, sorted, each with the most characters
    /// that are kept there.
    fn used_strings(&self) -> Vec<(u32, usize)> {
        let mut used: HashMap<u32, usize> = HashMap::new();
        if let (Some(nodes), Some(edges), Some(schema)) = (&self.nodes, &self.edges, &self.schema) {
            let longest =
                |kind: &String| if names_class(kind) { LONGEST_CLASS } else { LONGEST_TEXT };
            let longest: Vec<usize> = schema.node_kinds.iter().map(longest).collect();
            for node in nodes {
                let kept = used.entry(node.name).or_default();
                *kept = longest[node.kind as usize].max(*kept);
            }
            let labels = edges.labels.iter().zip(&edges.kinds);
            for (&label, _) in labels.filter(|(_, kind)| !schema.is_indexed[**kind as usize]) {
                used.entry(label).or_insert(LONGEST_TEXT);
            }
        }
        let mut used: Vec<(u32, usize)> = used.into_iter().collect();
        used.sort_unstable();
        used
    }

    /// What refers to a string.
    fn user_of(&self, string: u32) -> String {
        let node = self.nodes.iter().flatten().position(|node| node.name == string);
        if let Some(node) = node {
            return format!("name of node {node}");
        }
        let is_named =
            |kind: u8| self.schema.as_ref().is_some_and(|it| !it.is_indexed[kind as usize]);
        let edges = self.edges.iter().flat_map(|edges| edges.labels.iter().zip(&edges.kinds));
        let edge = edges.into_iter().position(|(label, kind)| *label == string && is_named(*kind));
        format!("name_or_index of edge {}", edge.unwrap_or_default())
    }

    fn finish(self) -> Result<Snapshot, String> {
        let missing = |section: Section| format!("the file has no {:?}", section.name());
        let schema = self.schema.ok_or_else(|| missing(Section::Snapshot))?;
        let mut nodes = self.nodes.ok_or_else(|| missing(Section::Nodes))?;
        let mut edges = self.edges.ok_or_else(|| missing(Section::Edges))?;
        let mut strings = self.strings.ok_or_else(|| missing(Section::Strings))?;
        // The table is not longer than the list of strings in the file, which has all used ones.
        let mut numbers = vec![0; self.used.last().map_or(0, |last| last.0 as usize + 1)];
        for (number, (used, _)) in self.used.iter().enumerate() {
            numbers[*used as usize] = number as u32;
        }
        for node in &mut nodes {
            node.name = numbers[node.name as usize];
        }
        for (label, kind) in edges.labels.iter_mut().zip(&edges.kinds) {
            if !schema.is_indexed[*kind as usize] {
                *label = numbers[*label as usize];
            }
        }
        nodes.shrink_to_fit();
        strings.shrink_to_fit();
        let facts = schema.facts();
        let Schema { node_kinds, edge_kinds, is_indexed, process, .. } = schema;
        Ok(Snapshot { strings, nodes, edges, node_kinds, edge_kinds, is_indexed, facts, process })
    }
}

/// The whole file.
struct Document<'r>(&'r mut Reading);

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the object of a heap snapshot")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(section) = map.next_key::<Section>()? {
            self.0.section(section, &mut map)?;
            self.0.at = At::File;
        }
        Ok(())
    }
}

/// Takes the numbers of a flat array, one by one.
trait Numbers {
    /// The next number; an error is the reason to refuse it.
    fn take(&mut self, number: Number, reading: &Reading) -> Result<(), String>;

    /// No more numbers: is everything there?
    fn end(&mut self, reading: &Reading) -> Result<(), String>;
}

/// A flat array on its way into `numbers`.
struct Flat<'r, N> {
    reading: &'r mut Reading,
    section: Section,
    numbers: &'r mut N,
}

impl<'de, N: Numbers> DeserializeSeed<'de> for Flat<'_, N> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, N: Numbers> Visitor<'de> for Flat<'_, N> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        let Self { reading, section, numbers } = self;
        let mut index = 0;
        loop {
            reading.at = At::Element(section, index);
            let Some(number) = array.next_element::<Number>()? else { break };
            numbers.take(number, reading).map_err(|reason| reading.refuse(reason))?;
            index += 1;
        }
        reading.at = At::Section(section);
        numbers.end(reading).map_err(|reason| reading.refuse(reason))
    }
}

/// `number` as a value of a field, below `limit`.
fn whole(number: Number, limit: u64, field: impl Fn() -> String) -> Result<u64, String> {
    match number {
        Number::Whole(n) if n < limit => Ok(n),
        Number::Whole(n) => Err(format!("{} is {n}, out of range (below {limit})", field())),
        Number::Other(text) => Err(format!("{} is {text}, not a whole number from 0 up", field())),
    }
}

/// The sizes of all nodes sum up to less, so that any sum is exact in JSON and JavaScript.
const MOST_SIZE: u64 = 1 << 53;

#[derive(Default)]
struct Nodes {
    records: Vec<Node>,
    /// The node being read: its fields so far.
    next: Node,
    field: usize,
    /// The sum of all edge counts.
    edges: u64,
    /// The sum of all sizes.
    size: u64,
}

impl Numbers for Nodes {
    #[inline]
    fn take(&mut self, number: Number, reading: &Reading) -> Result<(), String> {
        let schema = reading.schema.as_ref().expect("nodes are read after the schema");
        let id = self.records.len();
        if id == schema.nodes as usize {
            return Err(format!("more nodes than the {id} that snapshot.node_count claims"));
        }
        let next = &mut self.next;
        match schema.node[self.field] {
            NodeField::Type => {
                let kinds = schema.node_kinds.len() as u64;
                next.kind = whole(number, kinds, || format!("type of node {id}"))? as u8;
            }
            NodeField::Name => {
                next.name = whole(number, 1 << 32, || format!("name of node {id}"))? as u32;
            }
            NodeField::Size => {
                let left = MOST_SIZE - self.size;
                next.size = whole(number, left, || format!("self_size of node {id}"))?;
                self.size += next.size;
            }
            NodeField::EdgeCount => {
                let left = u64::from(schema.edges) - self.edges;
                let count = whole(number, u64::MAX, || format!("edge_count of node {id}"))?;
                if count > left {
                    let claimed = schema.edges;
                    return Err(format!(
                        "edge_count of node {id} is {count}; with it the nodes have more edges than the \
                         {claimed} that snapshot.edge_count claims"
                    ));
                }
                self.edges += count;
                next.end = self.edges as u32;
            }
            NodeField::Id => next.id = whole(number, u64::MAX, || format!("id of node {id}"))?,
            NodeField::Outside => {
                next.outside = whole(number, 1 << 32, || format!("outside of node {id}"))? as u32;
            }
            NodeField::Old => {
                next.is_old = whole(number, 2, || format!("old of node {id}"))? == 1;
            }
            NodeField::Ignored => {}
        }
        self.field += 1;
        if self.field == schema.node.len() {
            self.field = 0;
            self.records.push(self.next);
        }
        Ok(())
    }

    fn end(&mut self, reading: &Reading) -> Result<(), String> {
        let schema = reading.schema.as_ref().expect("nodes are read after the schema");
        let (there, claimed) = (self.records.len(), schema.nodes);
        if self.field != 0 {
            let (field, fields) = (self.field, schema.node.len());
            return Err(format!("ends inside node {there}, after {field} of {fields} numbers"));
        }
        if there != claimed as usize {
            return Err(format!("{there} nodes, but snapshot.node_count claims {claimed}"));
        }
        if self.edges != u64::from(schema.edges) {
            let (sum, claimed) = (self.edges, schema.edges);
            return Err(format!(
                "the nodes' edge_counts sum up to {sum}, but snapshot.edge_count claims {claimed}"
            ));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Edges {
    arrays: EdgeArrays,
    /// The edge being read: its fields so far.
    kind: u8,
    label: u32,
    target: u32,
    field: usize,
}

impl Numbers for Edges {
    #[inline]
    fn take(&mut self, number: Number, reading: &Reading) -> Result<(), String> {
        let schema = reading.schema.as_ref().expect("edges are read after the schema");
        let id = self.arrays.targets.len();
        if id == schema.edges as usize {
            return Err(format!("more edges than the {id} that snapshot.edge_count claims"));
        }
        match schema.edge[self.field] {
            EdgeField::Type => {
                let kinds = schema.edge_kinds.len() as u64;
                self.kind = whole(number, kinds, || format!("type of edge {id}"))? as u8;
            }
            EdgeField::Label => {
                let label = whole(number, 1 << 32, || format!("name_or_index of edge {id}"))?;
                self.label = label as u32;
            }
            EdgeField::Target => {
                let stride = schema.node.len() as u64;
                let limit = u64::from(schema.nodes) * stride;
                let index = whole(number, limit, || format!("to_node of edge {id}"))?;
                if index % stride != 0 {
                    return Err(format!(
                        "to_node of edge {id} is {index}, which is not where a node begins (a multiple of {stride})"
                    ));
                }
                self.target = (index / stride) as u32;
            }
            EdgeField::Ignored => {}
        }
        self.field += 1;
        if self.field == schema.edge.len() {
            self.field = 0;
            let is_weak = schema.weak == Some(self.kind);
            self.arrays.push(self.target, is_weak, self.label, self.kind);
        }
        Ok(())
    }

    fn end(&mut self, reading: &Reading) -> Result<(), String> {
        let schema = reading.schema.as_ref().expect("edges are read after the schema");
        let (there, claimed) = (self.arrays.targets.len(), schema.edges);
        if self.field != 0 {
            let (field, fields) = (self.field, schema.edge.len());
            return Err(format!("ends inside edge {there}, after {field} of {fields} numbers"));
        }
        if there != claimed as usize {
            return Err(format!("{there} edges, but snapshot.edge_count claims {claimed}"));
        }
        Ok(())
    }
}

/// The strings that nodes and edges use as names.
struct Strings<'r>(&'r mut Reading);

impl<'de> DeserializeSeed<'de> for Strings<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Strings<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of strings")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        let reading = self.0;
        let mut names = Vec::new();
        let mut index = 0;
        loop {
            reading.at = At::Element(Section::Strings, index);
            let wanted = reading.used.get(names.len()).filter(|used| u64::from(used.0) == index);
            let longest = wanted.map(|used| used.1);
            let Some(name) = array.next_element_seed(Text { longest })? else { break };
            names.extend(name);
            index += 1;
        }
        if let Some(&(unknown, _)) = reading.used.get(names.len()) {
            let user = reading.user_of(unknown);
            reading.at = At::Section(Section::Strings);
            return Err(reading
                .refuse(format!("{user} is string {unknown}, but there are {index} strings")));
        }
        reading.string_count = index;
        reading.strings = Some(names);
        Ok(())
    }
}

/// A string. Lone surrogates, which JavaScript allows, are replaced.
struct Text {
    /// The characters that are kept at most. `None`: nothing uses the string.
    longest: Option<usize>,
}

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Option<Box<str>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl Visitor<'_> for Text {
    type Value = Option<Box<str>>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a string")
    }

    fn visit_bytes<E: Error>(self, text: &[u8]) -> Result<Self::Value, E> {
        Ok(self.longest.map(|longest| {
            // A character takes 4 bytes at most, so these hold one more than are kept.
            let text = String::from_utf8_lossy(&text[..text.len().min(4 * longest + 4)]);
            match text.char_indices().nth(longest) {
                Some((end, _)) => format!("{}…", &text[..end]).into_boxed_str(),
                None => text.into(),
            }
        }))
    }
}
