//! The loop of an interpreter: safepoints on backward jumps, detached I/O, and a named root.
//!
//! Two threads interpret the same program, which makes cycles all the time. The heap collects them
//! by itself, and stops both threads at their safepoints to do so.
//!
//! ```sh
//! cargo run --release --example toy_runtime
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use standstill::{CollectionEvent, Gc, GcCell, Heap, Mutator, Trace};

/// A value of the language.
#[derive(Clone, Default, Trace)]
enum Value {
    #[default]
    Nil,
    Number(i64),
    Table(Gc<Table>),
}

/// The only type of object that the language has.
#[derive(Trace)]
struct Table {
    fields: GcCell<HashMap<&'static str, Value>>,
}

impl Table {
    fn new(m: &Mutator) -> Gc<Self> {
        m.alloc(Self { fields: GcCell::default() })
    }
}

/// An instruction. Operands are on the stack.
#[derive(Clone, Copy)]
enum Op {
    /// Pushes a number.
    Number(i64),
    /// Pushes a new table.
    Table,
    /// Pushes the table of global variables.
    Globals,
    /// Pushes the top of the stack again.
    Copy,
    /// Removes the top of the stack.
    Pop,
    /// table, value → : sets a field.
    Set(&'static str),
    /// table → value
    Get(&'static str),
    /// a, b → a + b
    Add,
    /// Jumps if the number on top, which it removes, is below the limit.
    JumpBelow(i64, usize),
    /// Waits for the outside world.
    Io,
}

/// A thread's interpreter. Its stack is a root without being registered: the collector finds that
/// more references to these objects exist than objects hold.
struct Interpreter<'h> {
    m: Mutator,
    globals: &'h Gc<Table>,
    stack: Vec<Value>,
}

impl Interpreter<'_> {
    fn pop(&mut self) -> Value {
        self.stack.pop().expect("a value on the stack")
    }

    fn number(&mut self) -> i64 {
        let Value::Number(number) = self.pop() else { panic!("not a number") };
        number
    }

    fn table(&mut self) -> Gc<Table> {
        let Value::Table(table) = self.pop() else { panic!("not a table") };
        table
    }

    fn run(&mut self, program: &[Op]) {
        let mut at = 0;
        while let Some(&op) = program.get(at) {
            at += 1;
            match op {
                Op::Number(number) => self.stack.push(Value::Number(number)),
                Op::Table => self.stack.push(Value::Table(Table::new(&self.m))),
                Op::Globals => self.stack.push(Value::Table(self.globals.clone())),
                Op::Copy => self.stack.extend(self.stack.last().cloned()),
                Op::Pop => drop(self.pop()),
                Op::Set(name) => {
                    let (value, table) = (self.pop(), self.table());
                    // Bound, so that the old value is dropped when the table is unlocked.
                    let _old = table.fields.lock(&self.m).insert(name, value);
                }
                Op::Get(name) => {
                    let table = self.table();
                    let value = table.fields.lock(&self.m).get(name).cloned();
                    self.stack.push(value.unwrap_or_default());
                }
                Op::Add => {
                    let sum = self.number() + self.number();
                    self.stack.push(Value::Number(sum));
                }
                Op::JumpBelow(limit, target) => {
                    if self.number() < limit {
                        at = target;
                        // A loop passes here: the thread parks if a collection wants to start.
                        self.m.safepoint();
                    }
                }
                // A stop does not wait for a detached thread.
                Op::Io => self.m.detach(|| std::thread::sleep(Duration::from_millis(20))),
            }
        }
    }
}

/// A loop of `rounds`: a table that refers to itself, a field with the round's number, and no more
/// reference to it.
fn program(rounds: i64) -> Vec<Op> {
    vec![
        Op::Number(0),
        // the loop: a table t, t.self = t
        Op::Table,
        Op::Copy,
        Op::Copy,
        Op::Set("self"),
        Op::Pop,
        // the next round: add globals.step
        Op::Globals,
        Op::Get("step"),
        Op::Add,
        Op::Copy,
        Op::JumpBelow(rounds, 1),
        // globals.rounds = the number of rounds
        Op::Pop,
        Op::Io,
        Op::Globals,
        Op::Number(rounds),
        Op::Set("rounds"),
    ]
}

fn main() {
    const ROUNDS: i64 = 100_000;
    let heap = Heap::new();
    let mut m = heap.attach();
    let collections = Arc::new(AtomicUsize::new(0));
    let count = collections.clone();
    heap.on_collection(move |event| {
        if let CollectionEvent::Stop(_) = event {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });

    let globals = Table::new(&m);
    globals.fields.lock(&m).insert("step", Value::Number(1));
    // A hint: full collections mark from here first, and count only the other objects.
    let named = heap.known_root(globals.clone());

    let program = program(ROUNDS);
    m.scope(|scope, _| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut interpreter =
                    Interpreter { m: heap.attach(), globals: &globals, stack: Vec::new() };
                interpreter.run(&program);
                assert!(interpreter.stack.is_empty());
            });
        }
    });

    let by_itself = collections.load(Ordering::Relaxed);
    let left = m.collect().collected;
    println!("{} tables made; {by_itself} collections by themselves", 2 * ROUNDS);
    println!("{left} tables left for a last collection");
    assert!(by_itself > 0 && left < 2 * ROUNDS as usize);
    let rounds = globals.fields.lock(&m).get("rounds").cloned();
    assert!(matches!(rounds, Some(Value::Number(ROUNDS))));
    drop(named);
    drop(globals);
    assert_eq!(heap.stats().live_objects, 0);
}
