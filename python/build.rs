//! Makes Rust types of the interpreter's internal structures.
//!
//! The interpreter is the one that maturin builds for (`PYO3_PYTHON`), or else `python3`. Its
//! headers lie beside it, or in its source tree. `libclang` reads them: that of `LIBCLANG_PATH`,
//! else that of the Python package `libclang`, which `pyproject.toml` requires for a build, else
//! the system's.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = "src/interpreter.h";
/// The directory of `libclang`, in the environment.
const LIBCLANG: &str = "LIBCLANG_PATH";

/// Prints the facts of an interpreter that this script needs.
const ASK: &str = "
import sys, sysconfig
print(sys.hexversion)
print(int(bool(sysconfig.get_config_var('Py_GIL_DISABLED'))))
print(int(bool(sysconfig.get_config_var('Py_DEBUG'))))
print(int('-fsanitize=thread' in (sysconfig.get_config_var('BASECFLAGS') or '')))
import importlib.util, os
clang = importlib.util.find_spec('clang')
print(os.path.join(os.path.dirname(clang.origin), 'native') if clang and clang.origin else '')
print(sysconfig.get_path('include'))
print(sysconfig.get_path('platinclude'))
print(os.path.dirname(sysconfig.get_config_h_filename()))
";

/// The structures whose layout the C compiler compares with bindgen's: names of C.
const COMPARED: &[&str] = &[
    "PyInterpreterState",
    "PyThreadState",
    "_PyThreadStateImpl",
    "PyObject",
    "PyVarObject",
    "PyTypeObject",
    "PyHeapTypeObject",
    "PyCodeObject",
    "PyDictObject",
    "PyDictKeysObject",
    "PyDictValues",
    "PyDictKeyEntry",
    "PyDictUnicodeEntry",
    "PyListObject",
    "PyTupleObject",
    "PyModuleObject",
    "PyGenObject",
    "PyFrameObject",
    "PyFunctionObject",
    "PyWeakReference",
    "_PyInterpreterFrame",
    "_PyStackRef",
    "struct _gc_runtime_state",
    "struct gc_generation_stats",
    "struct _mimalloc_interp_state",
    "struct _mimalloc_thread_state",
    "struct _brc_state",
    "struct _brc_thread_state",
    "struct _brc_bucket",
    "struct _Py_unique_id_pool",
    "_PyObjectStack",
    "_PyObjectStackChunk",
    "struct llist_node",
    "mi_heap_t",
    "mi_page_t",
    "mi_page_queue_t",
    "mi_segment_t",
    "mi_block_t",
    "mi_abandoned_pool_t",
];

/// Assertions in C: each of these structures has the size, and its fields the offsets, that bindgen
/// has found. The C compiler has made the interpreter, and bindgen reads the headers with libclang,
/// with some macros of its own.
fn assertions(bindings: &str) -> String {
    // rustfmt may have divided the lines.
    let words = bindings.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = format!("#include \"{HEADER}\"\n");
    for name in COMPARED {
        let plain = name.trim_start_matches("struct ");
        // `pub type` is an alias of the structure, and an alias may have an alias.
        let mut structure = plain;
        while let Some((_, rest)) = words.split_once(&format!("pub type {structure} = ")) {
            structure = rest.split_once(';').expect("a Rust item").0;
        }
        let mut compared = 0;
        let mut add = |left: String, right: &str| {
            let number = right.split_once("- ").expect("a difference").1;
            let number = number.split_once("usize").expect("a number").0;
            let why = format!("{left} is {number} for libclang, and not so for the C compiler");
            text += &format!("_Static_assert({left} == {number}, \"{why}\");\n");
            compared += 1;
        };
        for part in words.split(&format!("[\"Size of {structure}\"]")).skip(1) {
            add(format!("sizeof({name})"), part);
        }
        for part in words.split(&format!("[\"Offset of field: {structure}::")).skip(1) {
            let (field, rest) = part.split_once("\"]").expect("a name");
            // Names that C does not have: bindgen's own, and keywords of Rust.
            if !field.starts_with("__bindgen") && !field.ends_with('_') {
                add(format!("offsetof({name}, {field})"), rest);
            }
        }
        assert!(compared > 0, "bindgen has not read {name}");
    }
    text
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn main() {
    println!("cargo::rerun-if-changed={HEADER}");
    println!("cargo::rerun-if-env-changed=PYO3_PYTHON");
    println!("cargo::rerun-if-env-changed={LIBCLANG}");
    println!("cargo::rustc-check-cfg=cfg(py315, py_debug)");
    let python = env::var("PYO3_PYTHON").unwrap_or_else(|_| "python3".into());
    let answers = output(&python, &["-c", ASK]);
    let answers: Vec<&str> = answers.lines().collect();
    let [version, free_threaded, debug, thread_sanitizer, libclang, directories @ ..] =
        &answers[..]
    else {
        panic!("{python} answered {answers:?}");
    };
    assert_eq!(*free_threaded, "1", "{python} is not a free-threaded build of CPython");
    if env::var_os(LIBCLANG).is_none() && Path::new(libclang).join("libclang.so").is_file() {
        // SAFETY: no other thread of this process reads or writes its environment.
        unsafe { env::set_var(LIBCLANG, libclang) };
    }
    let version: u32 = version.parse().expect("a number");
    if version >= 0x030f_0000 {
        println!("cargo::rustc-cfg=py315");
    }
    if *debug == "1" {
        println!("cargo::rustc-cfg=py_debug");
    }

    let mut includes: Vec<String> = Vec::new();
    for directory in directories {
        for path in [PathBuf::from(directory), Path::new(directory).join("internal")] {
            let argument = format!("-I{}", path.display());
            if path.is_dir() && !includes.contains(&argument) {
                includes.push(argument);
            }
        }
    }
    // The allocator's pages have another layout in a build with ThreadSanitizer. Both compilers
    // tell the headers of it if they have this option.
    let sanitizer = (*thread_sanitizer == "1").then_some("-fsanitize=thread");
    // The compiler's own headers, which the package `libclang` has not.
    let builtin = output("cc", &["-print-file-name=include"]);
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let wrappers = out.join("wrappers");
    let bindings = bindgen::Builder::default()
        .header(HEADER)
        .clang_args(&includes)
        .clang_args(sanitizer)
        .clang_args([
            "-D__BINDGEN__".into(),
            "-nobuiltininc".into(),
            format!("-isystem{}", builtin.trim()),
        ])
        .allowlist_var("SS_.*|_PyWeakref_ProxyType|_PyWeakref_CallableProxyType")
        .allowlist_function("ss_.*|_PyEval_AddPendingCall")
        .allowlist_type(
            "_PyThreadStateImpl|PyThreadState|PyInterpreterState|_PyRuntimeState|PyObject|\
             PyTypeObject|PyHeapTypeObject|PyCodeObject|PyDictObject|PyDictKeysObject|\
             PyDictValues|PyListObject|PyTupleObject|PyModuleObject|PyGenObject|PyFrameObject|\
             PyFunctionObject|PyCellObject|PyWeakReference|_PyInterpreterFrame|_PyStackRef|\
             _PyCStackRef|_PyObjectStack|_PyObjectStackChunk|mi_heap_t|mi_page_t|mi_segment_t|\
             mi_slice_t|mi_block_t|mi_abandoned_pool_t|_Py_unique_id_pool|_Py_unique_id_entry|\
             _Py_DebugOffsets|gc_generation_stats|_gc_runtime_state|PyDictUnicodeEntry|\
             PyDictKeyEntry",
        )
        .wrap_static_fns(true)
        .wrap_static_fns_path(&wrappers)
        .derive_debug(false)
        .derive_default(false)
        .layout_tests(true)
        .generate_comments(false)
        .use_core()
        .generate()
        .expect("bindgen reads the interpreter's headers");
    bindings.write_to_file(out.join("layout.rs")).expect("the folder can be written");
    let compared = out.join("compared.c");
    let text = assertions(&bindings.to_string());
    std::fs::write(&compared, text).expect("the folder can be written");

    let mut build = cc::Build::new();
    for flag in includes.iter().map(String::as_str).chain(sanitizer) {
        build.flag(flag);
    }
    build
        .file(compared)
        .file(wrappers.with_extension("c"))
        .include(".")
        .warnings(false)
        .compile("wrappers");
}
