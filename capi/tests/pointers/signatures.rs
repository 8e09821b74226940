//! What the header says of each function: read from it, so that a new one cannot be forgotten.

use std::path::Path;

/// What a parameter is, as far as it matters for wrong values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An object, or a block that an object owns.
    Object,
    /// A type.
    Type,
    /// Objects, in an array.
    Array,
    /// A heap.
    Heap,
    /// A table with weak keys, or a guardian.
    Typed,
    /// What `PyEval_SaveThread` gave.
    Thread,
    /// A coordinator.
    Coordinator,
    /// A participant.
    Participant,
    /// A text with a 0 at its end.
    Text,
    /// A description: of a type, a module, a heap.
    Description,
    /// Where a result is written.
    Out,
    /// A function.
    Function,
    /// An address that only the program knows the meaning of.
    Opaque,
    /// No pointer.
    Number,
}

#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) struct Signature {
    /// The exported symbol, without its prefix.
    pub(crate) name: String,
    pub(crate) returns: String,
    pub(crate) parameters: Vec<Parameter>,
}

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The exported functions, and the statics left out, as `symbols.txt` lists them.
pub(crate) fn exported() -> Vec<String> {
    let is_static =
        |name: &str| name.contains("PyExc_") || name.ends_with("_Type") || name == "_Py_NoneStruct";
    let symbols = read("symbols.txt");
    let names = symbols.lines().filter_map(|line| line.split_whitespace().next());
    let names =
        names.map(|symbol| symbol.strip_prefix("standstill_").expect("the prefix of all symbols"));
    names.filter(|name| !is_static(name)).map(str::to_owned).collect()
}

/// Every function that the header declares.
pub(crate) fn declared() -> Vec<Signature> {
    let header = without_comments(&read("include/standstill.h"));
    let mut all = Vec::new();
    for tag in ["STANDSTILL_STABLE ", "STANDSTILL_UNSTABLE "] {
        for (at, _) in header.match_indices(tag) {
            let end = header[at..].find(';').expect("a declaration ends") + at;
            let is_extern = header[..at].trim_end().ends_with("extern");
            if !is_extern && let Some(signature) = parse(&header[at + tag.len()..end]) {
                all.push(signature);
            }
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut clean = String::new();
    while let Some((before, after)) = rest.split_once("/*") {
        clean.push_str(before);
        rest = after.split_once("*/").expect("a comment ends").1;
    }
    clean.push_str(rest);
    clean.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(" ")
}

fn parse(declaration: &str) -> Option<Signature> {
    let (head, parameters) = declaration.split_once('(')?;
    let parameters = parameters.trim_end().strip_suffix(')')?;
    let head = head.trim();
    let split = head.rfind([' ', '*'])? + 1;
    let name = &head[split..];
    Some(Signature {
        name: name.strip_prefix("standstill_").unwrap_or(name).to_owned(),
        returns: head[..split].trim().to_owned(),
        parameters: commas(parameters)
            .into_iter()
            .filter(|text| text != "void")
            .map(|text| parameter(&text))
            .collect(),
    })
}

/// The parts between the commas that lie in no parentheses.
fn commas(text: &str) -> Vec<String> {
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for char in text.chars() {
        depth += i32::from(char == '(') - i32::from(char == ')');
        match char {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("one at least").push(char),
        }
    }
    parts.into_iter().map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn parameter(text: &str) -> Parameter {
    let functions = ["visitproc ", "gcvisitobjects_t ", "standstill_gc_callback "];
    let descriptions = ["PyType_Spec *", "PyModuleDef *", "standstill_heap_options *"];
    let word = |text: &str| {
        text.rsplit([' ', '*']).next().expect("a name").trim_end_matches("[3]").to_owned()
    };
    let (kind, name) = if let Some((_, rest)) = text.split_once("(*") {
        (Kind::Function, rest.split(')').next().expect("a name").to_owned())
    } else if functions.iter().any(|function| text.starts_with(function)) {
        (Kind::Function, word(text))
    } else if text.contains("*const *") {
        (Kind::Array, word(text))
    } else if text.ends_with("[3]") || text.contains("**") {
        (Kind::Out, word(text))
    } else if text.starts_with("PyTypeObject *") {
        (Kind::Type, word(text))
    } else if text.starts_with("PyObject *")
        || text.starts_with("PyVarObject *")
        || text == "void *op"
        || text == "void *block"
    {
        (Kind::Object, word(text))
    } else if descriptions.iter().any(|description| text.contains(description)) {
        (Kind::Description, word(text))
    } else if text.starts_with("standstill_heap *") {
        (Kind::Heap, word(text))
    } else if ["standstill_weak_map *", "standstill_guardian *"]
        .iter()
        .any(|it| text.starts_with(it))
    {
        (Kind::Typed, word(text))
    } else if text.starts_with("PyThreadState *") {
        (Kind::Thread, word(text))
    } else if text.starts_with("standstill_coordinator *") {
        (Kind::Coordinator, word(text))
    } else if text.starts_with("standstill_participant *") {
        (Kind::Participant, word(text))
    } else if text.starts_with("const char *") {
        (Kind::Text, word(text))
    } else if text.contains("void *") {
        (Kind::Opaque, word(text))
    } else {
        assert!(!text.contains('*'), "what is this parameter? {text}");
        (Kind::Number, word(text))
    };
    Parameter { name, kind }
}
