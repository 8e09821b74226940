//! What the threads of a program share, and how a program starts.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use standstill::{Gc, GcCell, Heap, KnownRoot, Mutator};

use crate::code::{Code, Op, Special};
use crate::port::State;
use crate::prims;
use crate::printer;
use crate::reader;
use crate::symbol::{Globals, Symbol, Symbols};
use crate::value::{Closure, Condition, Dynamic, Parameter, Signal, Thread, Value, VarBox};
use crate::vm::{Ctx, Vm};

const PRELUDE: &str = include_str!("prelude.scm");

/// The bytes of each thread's own stack, which the reader, the compiler and the printer use for
/// nested data. The machine has a stack of its own.
pub const NATIVE_STACK: usize = 64 << 20;

pub struct Runtime {
    pub symbols: Arc<Symbols>,
    pub globals: Gc<Globals>,
    pub raise: Gc<Symbol>,
    pub rewind: Gc<Symbol>,
    /// When the program began.
    pub start: Instant,
    /// Full collections begin with the global variables.
    _root: KnownRoot,
    /// Dropped last, because all others are objects of it.
    pub heap: Heap,
}

/// A program that is loaded and ready to run on this thread.
pub struct Interpreter {
    pub vm: Vm,
}

impl Runtime {
    /// What a machine runs before the first procedure: nothing.
    pub fn idle(&self, m: &Mutator) -> Closure {
        let code = m.alloc(Code {
            name: "idle".to_string(),
            ops: [Op::Return].into(),
            constants: [].into(),
            globals: [].into(),
            codes: [].into(),
            captures: [].into(),
            required: 0,
            rest: false,
        });
        m.alloc_slice(code, [])
    }
}

pub fn new_thread(m: &Mutator, name: Value, thunk: Value) -> Gc<Thread> {
    m.alloc(Thread {
        name,
        thunk: GcCell::new(thunk),
        result: GcCell::default(),
        done: Signal::default(),
        specific: GcCell::default(),
    })
}

impl Interpreter {
    /// An interpreter with a heap of its own, on the calling thread.
    ///
    /// # Panics
    ///
    /// If the thread is attached to another heap, or if the prelude is wrong.
    pub fn new(heap: Heap) -> Self {
        let m = heap.attach();
        let symbols = Arc::new(Symbols::default());
        let globals = m.alloc(Globals::default());
        let rt = Arc::new(Runtime {
            raise: symbols.intern(&m, "raise"),
            rewind: symbols.intern(&m, "%rewind"),
            start: Instant::now(),
            _root: heap.known_root(globals.clone()),
            symbols,
            globals,
            heap,
        });
        let thread = new_thread(&m, Value::Bool(false), Value::Nil);
        let vm = Vm::new(m, rt, thread, empty());
        let define = |cx: &Ctx, name: &str, value: Value| {
            cx.define(&cx.rt.symbols.intern(&cx.m, name), value);
        };
        for (name, special) in Special::NAMES {
            define(&vm.cx, name, Value::Special(*special));
        }
        for native in prims::all() {
            define(&vm.cx, native.name, Value::Native(native));
        }
        let ports = [
            ("current-input-port", State::Terminal { chars: Vec::new(), at: 0 }),
            ("current-output-port", State::Output),
        ];
        for (name, state) in ports {
            let port = state.port(&vm.cx);
            let value = VarBox { value: GcCell::new(port) };
            let parameter = Parameter { value, converter: Value::Bool(false) };
            let parameter = Value::Parameter(vm.cx.m.alloc(parameter));
            define(&vm.cx, name, parameter);
        }
        let mut interpreter = Interpreter { vm };
        if let Err(error) = interpreter.run(PRELUDE) {
            panic!("the prelude is wrong: {}", interpreter.describe(&error));
        }
        interpreter
    }

    /// Runs all forms of a text. Returns the value of the last.
    ///
    /// # Errors
    ///
    /// What no handler of the program took.
    pub fn run(&mut self, text: &str) -> Result<Value, Value> {
        let forms = reader::read_all(&self.vm.cx, text)?;
        let mut last = Value::Unspecified;
        for form in forms {
            last = self.vm.eval(&form)?;
        }
        Ok(last)
    }

    /// The text of a value, as `write` prints it.
    pub fn show(&self, value: &Value) -> String {
        printer::show(&self.vm.cx.m, value, true)
    }

    /// A line about an object that was raised.
    pub fn describe(&self, error: &Value) -> String {
        self.vm.cx.describe(error)
    }
}

impl Ctx {
    pub fn describe(&self, error: &Value) -> String {
        let m = &self.m;
        let Value::Condition(condition) = error else {
            return format!("raised: {}", printer::show(m, error, true));
        };
        let Condition { message, irritants, .. } = &**condition;
        let mut text = printer::show(m, message, false);
        for irritant in irritants.items(m).0 {
            text.push(' ');
            text.push_str(&match &irritant {
                Value::Condition(_) => self.describe(&irritant),
                irritant => printer::show(m, irritant, true),
            });
        }
        text
    }

    pub fn parameter(&self, parameter: &Gc<Parameter>) -> Value {
        let mut rest = self.dynamic.parameters.clone();
        while let Some((binding, more)) = rest.ends(&self.m) {
            if let Some((Value::Parameter(it), Value::Box(value))) = binding.ends(&self.m)
                && it == *parameter
            {
                return value.value.get(&self.m);
            }
            rest = more;
        }
        parameter.value.value.get(&self.m)
    }
}

/// The dynamic state of a program's start: no handlers, no parameters.
fn empty() -> Dynamic {
    Dynamic { winders: Value::Nil, handlers: Value::Nil, parameters: Value::Nil }
}

/// Writes out what standard output holds back. A closed output is no error of the program.
pub fn flush() {
    if let Err(error) = std::io::stdout().flush() {
        eprintln!("standard output: {error}");
    }
}
