//! The machine: one for each thread, with a stack of values and a stack of frames.
//!
//! A continuation must be able to return any number of times, so `call/cc` moves the stack into
//! objects, [`Segment`]s, and returns copy one segment back at a time. What has been moved once is
//! shared by all later continuations, so a generator in a deep recursion costs only its own frames.

use std::mem::{ManuallyDrop, replace, take};
use std::sync::Arc;

use standstill::{Gc, Mutator, Trace};

use crate::code::{Capture, Code, One, Op};
use crate::inline::{one, small, test1, test2, two, vector_set};
use crate::runtime::Runtime;
use crate::stack::Stack;
use crate::symbol::Symbol;
use crate::syntax;
use crate::value::{
    Closure, Condition, Continuation, Dynamic, Kind, Native, Res, Run, Thread, Value,
};

/// The frames in a segment.
const SEGMENT: usize = 32;
/// Frames of one thread. A recursion that is deeper raises an error, and ends the
/// thread if the handler recurses, too.
const DEEPEST: usize = 10_000_000;

/// A procedure that waits for the result of a call.
#[derive(Clone, Trace)]
struct Frame {
    closure: Closure,
    pc: u32,
    base: u32,
}

/// A part of a stack that a continuation has captured. It does not change.
#[derive(Trace)]
pub struct Segment {
    values: Vec<Value>,
    frames: Vec<Frame>,
    below: Option<Gc<Segment>>,
}

/// What procedures in Rust can use.
pub struct Ctx {
    pub m: Mutator,
    pub rt: Arc<Runtime>,
    pub dynamic: Dynamic,
    pub thread: Gc<Thread>,
    /// The object that ends the program, because no handler took it.
    pub uncaught: Option<Value>,
}

pub struct Vm {
    pub cx: Ctx,
    stack: Stack,
    frames: Vec<Frame>,
    below: Option<Gc<Segment>>,
}

/// What the inner loop cannot do itself.
enum Next {
    Enter { callee: Closure, count: usize, tail: bool },
    Call { callee: Value, count: usize, tail: bool },
    Return,
    Raise(Value),
}

impl Ctx {
    /// A condition as `error` makes it.
    pub fn error(&self, message: &str, irritants: &[Value]) -> Value {
        self.condition(Kind::Error, message, irritants)
    }

    pub fn condition(&self, kind: Kind, message: &str, irritants: &[Value]) -> Value {
        let message = Value::string(&self.m, message);
        let irritants = Value::list(&self.m, irritants.to_vec());
        Value::Condition(self.m.alloc(Condition { kind, message, irritants }))
    }

    pub fn symbol(&self, name: &str) -> Value {
        Value::Symbol(self.rt.symbols.intern(&self.m, name))
    }

    pub fn define(&self, symbol: &Gc<Symbol>, value: Value) {
        self.rt.globals.define(&self.m, symbol, value);
    }

    #[cold]
    #[inline(never)]
    fn no_procedure(&self, callee: &Value) -> Value {
        self.error("not a procedure:", std::slice::from_ref(callee))
    }

    #[cold]
    #[inline(never)]
    pub fn wrong_type(&self, name: &str, arguments: &[&Value]) -> Value {
        let arguments: Vec<Value> = arguments.iter().map(|it| (*it).clone()).collect();
        self.error(&format!("{name}: wrong arguments:"), &arguments)
    }

    #[cold]
    #[inline(never)]
    fn wrong_count(&self, name: &str, count: usize) -> Value {
        let name = if name.is_empty() { "a procedure" } else { name };
        self.error(&format!("{name}: wrong number of arguments:"), &[Value::from(count)])
    }
}

/// The error of a variable without a value.
#[cold]
#[inline(never)]
fn unbound(cx: &Ctx, symbol: &Gc<Symbol>) -> Value {
    cx.error("unbound variable:", &[Value::Symbol(symbol.clone())])
}

impl Vm {
    pub fn new(m: Mutator, rt: Arc<Runtime>, thread: Gc<Thread>, dynamic: Dynamic) -> Self {
        let cx = Ctx { m, rt, dynamic, thread, uncaught: None };
        Vm { cx, stack: Stack::new(), frames: Vec::new(), below: None }
    }

    /// Compiles and runs a form of the outermost level.
    pub fn eval(&mut self, form: &Value) -> Res {
        let closure = syntax::compile(&self.cx, form)?;
        self.call(Value::Closure(closure))
    }

    /// Calls a procedure without arguments.
    ///
    /// The error is an object that no handler took.
    pub fn call(&mut self, callee: Value) -> Res {
        let idle = self.cx.rt.idle(&self.cx.m);
        let result = self.run(idle, callee);
        self.stack.truncate(0);
        self.frames.clear();
        self.below = None;
        result
    }

    /// Puts the arguments of a procedure in order: those beyond the required ones into a list.
    #[inline(always)]
    fn fit(&mut self, code: &Code, count: usize) -> Result<(), Value> {
        let required = code.required as usize;
        if count == required && !code.rest {
            return Ok(());
        }
        if count < required || !code.rest {
            return Err(self.cx.wrong_count(&code.name, count));
        }
        let first = self.stack.len() - (count - required);
        let rest = Value::list(&self.cx.m, self.stack.split_off(first));
        self.stack.push(rest);
        Ok(())
    }

    /// Moves the arguments of a tail call to the start of the frame.
    #[inline(always)]
    fn move_down(&mut self, base: usize, count: usize) {
        let from = self.stack.len() - count;
        if from > base {
            for i in 0..count {
                self.stack.relocate(from + i, base + i);
            }
            self.stack.truncate(base + count);
        }
    }

    /// Moves the frames into segments, so that they can be copied later.
    fn capture(&mut self) {
        let mut values = self.stack.split_off(0).into_iter();
        let mut frames = take(&mut self.frames).into_iter().peekable();
        while let Some(first) = frames.peek() {
            let start = first.base;
            let part = frames.by_ref().take(SEGMENT);
            let part = part.map(|it| Frame { base: it.base - start, ..it }).collect();
            let count = frames.peek().map_or(usize::MAX, |next| (next.base - start) as usize);
            let values = values.by_ref().take(count).collect();
            let below = self.below.take();
            self.below = Some(self.cx.m.alloc(Segment { values, frames: part, below }));
        }
    }

    /// Copies the innermost segment back.
    fn restore(&mut self) -> bool {
        let Some(segment) = self.below.take() else { return false };
        self.stack.extend(segment.values.iter().cloned());
        self.frames.extend_from_slice(&segment.frames);
        self.below = segment.below.clone();
        true
    }

    fn closure(&self, code: &Gc<Code>, own: &Closure, base: usize) -> Closure {
        self.cx.m.alloc_slice(
            code.clone(),
            code.captures.iter().map(|capture| match capture {
                Capture::Own => Value::Closure(own.clone()),
                Capture::From(src) if src.kind() == 0 => self.stack[base + src.index()].clone(),
                Capture::From(src) => own.items[src.index()].clone(),
            }),
        )
    }

    fn run(&mut self, mut cur: Closure, start: Value) -> Res {
        let (mut pc, mut base) = (0_usize, 0_usize);
        let mut pending = Some(Next::Call { callee: start, count: 0, tail: true });
        'machine: loop {
            let next = match pending.take() {
                Some(next) => next,
                None => self.step(&cur, &mut pc, base),
            };
            let (mut callee, mut count, tail) = match next {
                Next::Enter { callee, count, tail } => {
                    if tail {
                        self.move_down(base, count);
                        cur = callee;
                    } else {
                        let closure = replace(&mut cur, callee);
                        self.frames.push(Frame { closure, pc: pc as u32, base: base as u32 });
                        base = self.stack.len() - count;
                        if self.frames.len() >= DEEPEST {
                            let error = self.cx.error("the recursion is too deep", &[]);
                            // The handler has room for frames of its own.
                            if self.frames.len() == DEEPEST {
                                pc = 0;
                                pending = Some(Next::Raise(error));
                                continue 'machine;
                            } else if self.frames.len() > DEEPEST + DEEPEST / 10 {
                                return Err(error);
                            }
                        }
                    }
                    pc = 0;
                    self.cx.m.safepoint();
                    let code = &cur.header;
                    if count != code.required as usize || code.rest {
                        let code = code.clone();
                        if let Err(error) = self.fit(&code, count) {
                            self.stack.truncate(base);
                            pending = Some(Next::Raise(error));
                        }
                    }
                    continue 'machine;
                }
                Next::Return => {
                    if let Some(n) = self.stack.top_int()
                        && let Some(frame) = self.frames.pop()
                    {
                        self.stack.truncate(base);
                        self.stack.push_int(n);
                        (cur, pc, base) = (frame.closure, frame.pc as usize, frame.base as usize);
                        continue 'machine;
                    }
                    let value = self.stack.pop();
                    self.stack.truncate(base);
                    let frame = match self.frames.pop() {
                        Some(frame) => frame,
                        None if self.restore() => self.frames.pop().expect("segments have frames"),
                        None => return Ok(value),
                    };
                    self.stack.push(value);
                    (cur, pc, base) = (frame.closure, frame.pc as usize, frame.base as usize);
                    continue 'machine;
                }
                Next::Raise(error) => {
                    if let Some(uncaught) = self.cx.uncaught.take() {
                        return Err(uncaught);
                    }
                    let Some(raise) = self.cx.rt.raise.global.peek(&self.cx.m) else {
                        return Err(error);
                    };
                    let callee = raise.0.clone();
                    self.stack.push(error);
                    (callee, 1, false)
                }
                Next::Call { callee, count, tail } => (callee, count, tail),
            };

            // A procedure in Rust needs no frame.
            if let Value::Native(Native { min, max, run: Run::Plain(function), name }) = callee {
                let first = self.stack.len() - count;
                let fits =
                    count >= usize::from(*min) && (*max == 255 || count <= usize::from(*max));
                let result = if fits {
                    function(&mut self.cx, self.stack.from(first))
                } else {
                    Err(self.cx.wrong_count(name, count))
                };
                self.stack.truncate(first);
                match result {
                    Ok(value) => {
                        self.stack.push(value);
                        pending = tail.then_some(Next::Return);
                    }
                    Err(error) => pending = Some(Next::Raise(error)),
                }
                continue 'machine;
            }
            let chosen = match &callee {
                Value::Closure(callee) => Some(callee.clone()),
                Value::Cases(cases) => {
                    cases.items.iter().find(|it| it.header.takes(count)).cloned()
                }
                _ => None,
            };
            if let Some(callee) = chosen {
                pending = Some(Next::Enter { callee, count, tail });
                continue 'machine;
            }
            // All others replace the frame, which is made here if there is none.
            if tail {
                self.move_down(base, count);
            } else {
                let (pc, closure) = (pc as u32, cur.clone());
                self.frames.push(Frame { closure, pc, base: base as u32 });
                base = self.stack.len() - count;
            }
            pending = Some(loop {
                match &callee {
                    Value::Native(native) => match self.special(native, base, count) {
                        Ok(Some(next)) => {
                            (callee, count) = next;
                            base = self.stack.len() - count;
                        }
                        // The result replaces the frame.
                        Ok(None) => {
                            base = 0;
                            break Next::Return;
                        }
                        Err(error) => break Next::Raise(error),
                    },
                    Value::Cases(cases) => {
                        let Some(case) = cases.items.iter().find(|it| it.header.takes(count))
                        else {
                            break Next::Raise(self.cx.wrong_count("", count));
                        };
                        callee = Value::Closure(case.clone());
                    }
                    Value::Parameter(parameter) => {
                        let value = self.cx.parameter(parameter);
                        self.stack.truncate(base);
                        self.stack.push(value);
                        break Next::Return;
                    }
                    Value::Continuation(target) => {
                        let values = Value::list(&self.cx.m, self.stack.split_off(base));
                        if target.dynamic.winders.is_same(&self.cx.dynamic.winders) {
                            let target = target.clone();
                            self.throw(&target, &values);
                            base = 0;
                            break Next::Return;
                        }
                        // Code of the program runs on the way there.
                        let Some(rewind) = self.cx.rt.rewind.global.peek(&self.cx.m) else {
                            break Next::Raise(self.cx.no_procedure(&callee));
                        };
                        let rewind = rewind.0.clone();
                        self.stack.extend([callee, values]);
                        (callee, count) = (rewind, 2);
                    }
                    Value::Closure(closure) => {
                        break Next::Enter { callee: closure.clone(), count, tail: true };
                    }
                    other => break Next::Raise(self.cx.no_procedure(other)),
                }
                if let Value::Native(Native { run: Run::Plain(_), .. }) = callee {
                    break Next::Call { callee, count, tail: true };
                }
            });
        }
    }

    /// Makes the continuation the present one, with its result on the stack.
    fn throw(&mut self, target: &Continuation, values: &Value) {
        self.stack.truncate(0);
        self.frames.clear();
        self.below = target.segment.clone();
        self.cx.dynamic = target.dynamic.clone();
        let value = match values.ends(&self.cx.m) {
            Some((value, Value::Nil)) => value,
            _ => Value::Values(
                self.cx.m.alloc_slice((), values.proper(&self.cx.m).unwrap_or_default()),
            ),
        };
        self.stack.push(value);
    }

    /// Does what only the machine can. The result is the next call, whose arguments are at `base`,
    /// or nothing if a continuation has replaced the stack.
    fn special(
        &mut self,
        native: &Native,
        base: usize,
        count: usize,
    ) -> Res<Option<(Value, usize)>> {
        let arguments: Vec<Value> = self.stack.split_off(base);
        if count < usize::from(native.min) || (native.max != 255 && count > usize::from(native.max))
        {
            return Err(self.cx.wrong_count(native.name, count));
        }
        match (native.run, &arguments[..]) {
            (Run::Apply, [callee, first @ .., last]) => {
                let Some(rest) = last.proper(&self.cx.m) else {
                    return Err(self.cx.wrong_type("apply", &[last]));
                };
                self.stack.extend(first.iter().cloned().chain(rest));
                Ok(Some((callee.clone(), self.stack.len() - base)))
            }
            (Run::ApplyValues, [callee, Value::Values(values)]) => {
                self.stack.extend(values.items.iter().cloned());
                Ok(Some((callee.clone(), values.items.len())))
            }
            (Run::ApplyValues, [callee, value]) => {
                self.stack.push(value.clone());
                Ok(Some((callee.clone(), 1)))
            }
            (Run::CallCc, [receiver]) => {
                self.capture();
                let (segment, dynamic) = (self.below.clone(), self.cx.dynamic.clone());
                let continuation = self.cx.m.alloc(Continuation { segment, dynamic });
                self.stack.push(Value::Continuation(continuation));
                Ok(Some((receiver.clone(), 1)))
            }
            (Run::Throw, [Value::Continuation(target), values]) => {
                self.throw(target, values);
                Ok(None)
            }
            (Run::Eval, [form, ..]) => {
                Ok(Some((Value::Closure(syntax::compile(&self.cx, form)?), 0)))
            }
            _ => Err(self.cx.wrong_type(native.name, &arguments.iter().collect::<Vec<_>>())),
        }
    }

    /// Runs a procedure up to a call, its return or an error.
    #[inline(always)]
    fn step(&mut self, cur: &Closure, pc: &mut usize, base: usize) -> Next {
        let code: &Code = &cur.header;
        let (ops, captured) = (&code.ops[..], &cur.items[..]);
        let mut at = *pc;
        // The value of an operand, which stays on the stack; `top` is the length without it.
        macro_rules! operand {
            ($src:expr, $number:ident, $top:ident) => {
                match $src.kind() {
                    0 => &self.stack[base + $src.index()],
                    1 => {
                        $top -= 1;
                        &self.stack[$top]
                    }
                    2 => {
                        $number = ManuallyDrop::new(Value::Int($src.number()));
                        &*$number
                    }
                    _ => &captured[$src.index()],
                }
            };
        }
        macro_rules! place {
            ($src:expr) => {
                if $src.kind() == 0 {
                    &self.stack[base + $src.index()]
                } else {
                    &captured[$src.index()]
                }
            };
        }
        // Each kind is written on its own. A value that is first made in a common place would be
        // read as a whole right after its two parts are written, for which a processor waits.
        macro_rules! push_copy {
            ($value:expr) => {
                match $value {
                    Value::Int(n) => {
                        let n = *n;
                        self.stack.push_int(n);
                    }
                    Value::Pair(pair) => {
                        let pair = pair.clone();
                        self.stack.push(Value::Pair(pair));
                    }
                    other => {
                        let other = other.clone();
                        self.stack.push(other);
                    }
                }
            };
        }
        let next = loop {
            let op = ops[at];
            at += 1;
            match op {
                Op::Push(src) if src.kind() == 2 => self.stack.push_int(src.number()),
                Op::Push(src) => push_copy!(place!(src)),
                Op::Const(i) => self.stack.push(code.constants[i as usize].clone()),
                Op::Unbox(src) => {
                    let Value::Box(variable) = place!(src) else { unreachable!("a box") };
                    let value = variable.value.get(&self.cx.m);
                    if let Value::Undefined = value {
                        break Next::Raise(self.cx.error("a variable has no value yet", &[]));
                    }
                    self.stack.push(value);
                }
                Op::SetBox(src) => {
                    let value = self.stack.pop();
                    let Value::Box(variable) = place!(src) else { unreachable!("a box") };
                    variable.value.set(&self.cx.m, value);
                    self.stack.push(Value::Unspecified);
                }
                Op::Box(slot) => {
                    let slot = &mut self.stack[base + usize::from(slot)];
                    *slot = Value::boxed(&self.cx.m, take(slot));
                }
                Op::NewBox => self.stack.push(Value::boxed(&self.cx.m, Value::Undefined)),
                Op::Global(i) => {
                    let symbol = &code.globals[i as usize];
                    match symbol.global.peek(&self.cx.m) {
                        Some(global) => self.stack.push(global.0.clone()),
                        None => break Next::Raise(unbound(&self.cx, symbol)),
                    }
                }
                Op::SetGlobal(i) => {
                    let value = self.stack.pop();
                    let symbol = &code.globals[i as usize];
                    if symbol.global.peek(&self.cx.m).is_none() {
                        break Next::Raise(unbound(&self.cx, symbol));
                    }
                    self.cx.define(symbol, value);
                    self.stack.push(Value::Unspecified);
                }
                Op::Define(i) => {
                    let value = self.stack.pop();
                    self.cx.define(&code.globals[i as usize], value);
                    self.stack.push(Value::Unspecified);
                }
                Op::Own => self.stack.push(Value::Closure(cur.clone())),
                Op::Closure(i) => {
                    let closure = self.closure(&code.codes[i as usize], cur, base);
                    self.stack.push(Value::Closure(closure));
                }
                Op::Cases(count) => {
                    let first = self.stack.len() - count as usize;
                    let cases =
                        self.stack.split_off(first).into_iter().filter_map(|case| match case {
                            Value::Closure(closure) => Some(closure),
                            _ => None,
                        });
                    let cases: Vec<Closure> = cases.collect();
                    self.stack.push(Value::Cases(self.cx.m.alloc_slice((), cases)));
                }
                Op::Jump(to) => at = at.wrapping_add_signed(to as isize),
                Op::JumpUnless(to) => {
                    let top = self.stack.len() - 1;
                    if !self.stack[top].is_true() {
                        at = at.wrapping_add_signed(to as isize);
                    }
                    self.stack.truncate(top);
                }
                Op::JumpOr(to) => {
                    if self.stack[self.stack.len() - 1].is_true() {
                        at = at.wrapping_add_signed(to as isize);
                    } else {
                        self.stack.truncate(self.stack.len() - 1);
                    }
                }
                Op::Unless1(op, a, to) => {
                    let (number, mut top);
                    top = self.stack.len();
                    let a = operand!(a, number, top);
                    let result = test1(&self.cx, op, a);
                    self.stack.truncate(top);
                    match result {
                        Ok(true) => {}
                        Ok(false) => at = at.wrapping_add_signed(to as isize),
                        Err(error) => break Next::Raise(error),
                    }
                }
                Op::Unless2(op, a, b, to) => {
                    let (number, number2, mut top);
                    top = self.stack.len();
                    let b = operand!(b, number, top);
                    let a = operand!(a, number2, top);
                    let result = test2(&self.cx, op, a, b);
                    self.stack.truncate(top);
                    match result {
                        Ok(true) => {}
                        Ok(false) => at = at.wrapping_add_signed(to as isize),
                        Err(error) => break Next::Raise(error),
                    }
                }
                Op::One(op, a) => {
                    let (number, mut top);
                    top = self.stack.len();
                    let a = operand!(a, number, top);
                    if let (Value::Pair(pair), One::Car | One::Cdr) = (a, op) {
                        let ends = pair.ends.lock(&self.cx.m);
                        let part = if op == One::Car { &ends.0 } else { &ends.1 };
                        match part {
                            Value::Int(n) => {
                                let n = *n;
                                drop(ends);
                                self.stack.truncate(top);
                                self.stack.push_int(n);
                            }
                            Value::Pair(part) => {
                                let part = part.clone();
                                drop(ends);
                                self.stack.truncate(top);
                                self.stack.push(Value::Pair(part));
                            }
                            other => {
                                let other = other.clone();
                                drop(ends);
                                self.stack.truncate(top);
                                self.stack.push(other);
                            }
                        }
                        continue;
                    }
                    match one(&self.cx, op, a) {
                        Ok(value) => {
                            self.stack.truncate(top);
                            self.stack.push(value);
                        }
                        Err(error) => break Next::Raise(error),
                    }
                }
                Op::Two(op, a, b) => {
                    let (number, number2, mut top);
                    top = self.stack.len();
                    let b = operand!(b, number, top);
                    let a = operand!(a, number2, top);
                    if let Some(n) = small(op, a, b) {
                        self.stack.truncate(top);
                        self.stack.push_int(n);
                        continue;
                    }
                    match two(&self.cx, op, a, b) {
                        Ok(value) => {
                            self.stack.truncate(top);
                            self.stack.push(value);
                        }
                        Err(error) => break Next::Raise(error),
                    }
                }
                Op::VectorSet => {
                    let first = self.stack.len() - 3;
                    if let Some(old) = vector_set(&self.cx.m, self.stack.from(first)) {
                        old.discard();
                        self.stack.truncate(first);
                        self.stack.push(Value::Unspecified);
                    } else {
                        let arguments: Vec<&Value> = self.stack.from(first).iter().collect();
                        break Next::Raise(self.cx.wrong_type("vector-set!", &arguments));
                    }
                }
                Op::Call(count) | Op::TailCall(count) => {
                    let tail = matches!(op, Op::TailCall(_));
                    let callee = self.stack.pop();
                    let count = usize::from(count);
                    break match callee {
                        Value::Closure(callee) => Next::Enter { callee, count, tail },
                        callee => Next::Call { callee, count, tail },
                    };
                }
                Op::CallGlobal(i, count) | Op::TailCallGlobal(i, count) => {
                    let tail = matches!(op, Op::TailCallGlobal(..));
                    let symbol = &code.globals[i as usize];
                    let count = usize::from(count);
                    break match symbol.global.peek(&self.cx.m) {
                        Some(global) => match &global.0 {
                            Value::Closure(callee) => {
                                Next::Enter { callee: callee.clone(), count, tail }
                            }
                            callee => Next::Call { callee: callee.clone(), count, tail },
                        },
                        None => Next::Raise(unbound(&self.cx, symbol)),
                    };
                }
                Op::CallOwn(count) | Op::TailCallOwn(count) => {
                    let tail = matches!(op, Op::TailCallOwn(_));
                    break Next::Enter { callee: cur.clone(), count: usize::from(count), tail };
                }
                Op::Return => break Next::Return,
                Op::Pop => self.stack.truncate(self.stack.len() - 1),
                Op::Slide(count) => {
                    let value = self.stack.pop();
                    self.stack.truncate(self.stack.len() - usize::from(count));
                    self.stack.push(value);
                }
                Op::Again { slot, count, back } => {
                    self.move_down(base + usize::from(slot), usize::from(count));
                    at = at.wrapping_add_signed(isize::from(back));
                    self.cx.m.safepoint();
                }
                Op::Rebind { slot, count } => {
                    self.move_down(base + usize::from(slot), usize::from(count));
                    self.cx.m.safepoint();
                }
            }
        };
        *pc = at;
        next
    }
}
