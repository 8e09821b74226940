//! From the tree to code.

use std::collections::HashMap;

use standstill::{Gc, Mutator};

use crate::code::{Capture, Code, Lambda, Node, One, Op, Src, Two, Var};
use crate::symbol::Symbol;
use crate::value::{Closure, Value};

/// A procedure under construction.
#[derive(Default)]
struct Function {
    ops: Vec<Op>,
    constants: Vec<Value>,
    globals: Vec<Gc<Symbol>>,
    codes: Vec<Gc<Code>>,
    slots: HashMap<Var, usize>,
    captured: Vec<Var>,
    captures: Vec<Capture>,
    /// The variable whose value is this procedure.
    own: Option<Var>,
    /// The number of values in the frame.
    depth: usize,
    loops: Vec<Looping>,
}

struct Looping {
    name: Var,
    slot: usize,
    count: usize,
    start: usize,
}

enum Place {
    At(Src),
    Own,
}

pub struct Generator<'a> {
    m: &'a Mutator,
    boxed: &'a [bool],
    functions: Vec<Function>,
    /// Whether a procedure exceeds a limit of the instructions.
    too_large: bool,
}

/// A procedure without parameters that evaluates a form.
pub fn generate(m: &Mutator, boxed: &[bool], node: Node) -> Option<Closure> {
    let mut g = Generator { m, boxed, functions: Vec::new(), too_large: false };
    let lambda = Lambda { name: String::new(), parameters: Vec::new(), rest: false, body: node };
    let code = g.function(&lambda, None);
    (!g.too_large).then(|| m.alloc_slice(code, []))
}

impl Generator<'_> {
    fn f(&mut self) -> &mut Function {
        self.functions.last_mut().expect("a function is under construction")
    }

    fn emit(&mut self, op: Op, change: isize) {
        let f = self.f();
        f.ops.push(op);
        f.depth = f.depth.checked_add_signed(change).expect("a frame has no negative depth");
    }

    /// The place of an instruction that is patched later.
    fn here(&mut self) -> usize {
        self.f().ops.len()
    }

    /// Makes the jump at `at` lead to the next instruction.
    fn land(&mut self, at: usize) {
        let distance = self.here() - at - 1;
        let (far, near) = (distance as i32, i16::try_from(distance));
        if near.is_err() && matches!(self.f().ops[at], Op::Unless1(..) | Op::Unless2(..)) {
            self.too_large = true;
        }
        let near = near.unwrap_or(0);
        match &mut self.f().ops[at] {
            Op::Jump(to) | Op::JumpUnless(to) | Op::JumpOr(to) => *to = far,
            Op::Unless1(.., to) | Op::Unless2(.., to) => *to = near,
            other => unreachable!("{other:?} is no jump"),
        }
    }

    fn function(&mut self, lambda: &Lambda, own: Option<Var>) -> Gc<Code> {
        let mut f = Function { own, depth: lambda.parameters.len(), ..Function::default() };
        f.slots.extend(lambda.parameters.iter().enumerate().map(|(slot, var)| (*var, slot)));
        self.functions.push(f);
        self.box_slots(&lambda.parameters);
        self.tail(&lambda.body);
        let f = self.functions.pop().expect("pushed above");
        self.too_large |= f.captures.len() >= Src::LIMIT;
        self.m.alloc(Code {
            name: lambda.name.clone(),
            ops: f.ops.into(),
            constants: f.constants.into(),
            globals: f.globals.into(),
            codes: f.codes.into(),
            captures: f.captures.into(),
            required: (lambda.parameters.len() - usize::from(lambda.rest)) as u32,
            rest: lambda.rest,
        })
    }

    fn box_slots(&mut self, variables: &[Var]) {
        for var in variables {
            if self.boxed[*var] {
                let slot = self.f().slots[var] as u16;
                self.emit(Op::Box(slot), 0);
            }
        }
    }

    fn bind(&mut self, var: Var, slot: usize) {
        self.too_large |= slot >= Src::LIMIT;
        self.f().slots.insert(var, slot);
    }

    fn place(&mut self, var: Var) -> Place {
        self.place_in(var, self.functions.len() - 1)
    }

    fn place_in(&mut self, var: Var, level: usize) -> Place {
        let f = &self.functions[level];
        if let Some(slot) = f.slots.get(&var) {
            return Place::At(Src::slot(*slot));
        }
        if f.own == Some(var) {
            return Place::Own;
        }
        if let Some(index) = f.captured.iter().position(|it| *it == var) {
            return Place::At(Src::captured(index));
        }
        let capture = match self.place_in(var, level - 1) {
            Place::At(src) => Capture::From(src),
            Place::Own => Capture::Own,
        };
        let f = &mut self.functions[level];
        f.captured.push(var);
        f.captures.push(capture);
        Place::At(Src::captured(f.captures.len() - 1))
    }

    fn global(&mut self, symbol: &Gc<Symbol>) -> u32 {
        let globals = &mut self.f().globals;
        let at = globals.iter().position(|it| it == symbol).unwrap_or_else(|| {
            globals.push(symbol.clone());
            globals.len() - 1
        });
        at as u32
    }

    /// The operand for a value that needs no code, or else the code that pushes the value.
    fn operand(&mut self, node: &Node) -> Src {
        match node {
            Node::Const(Value::Int(n)) => {
                if let Some(src) = Src::int(*n) {
                    return src;
                }
            }
            Node::Local(var) if !self.boxed[*var] => {
                if let Place::At(src) = self.place(*var) {
                    return src;
                }
            }
            _ => {}
        }
        self.push(node);
        Src::STACK
    }

    fn pops(sources: &[Src]) -> isize {
        sources.iter().filter(|src| **src == Src::STACK).count() as isize
    }

    /// Pushes the value.
    fn push(&mut self, node: &Node) {
        match node {
            Node::Const(value) => {
                if let Value::Int(n) = value
                    && let Some(src) = Src::int(*n)
                {
                    return self.emit(Op::Push(src), 1);
                }
                self.f().constants.push(value.clone());
                let at = self.f().constants.len() as u32 - 1;
                self.emit(Op::Const(at), 1);
            }
            Node::Local(var) => match self.place(*var) {
                Place::Own => self.emit(Op::Own, 1),
                Place::At(src) if self.boxed[*var] => self.emit(Op::Unbox(src), 1),
                Place::At(src) => self.emit(Op::Push(src), 1),
            },
            Node::Global(symbol) => {
                let at = self.global(symbol);
                self.emit(Op::Global(at), 1);
            }
            Node::SetLocal(var, value) => {
                self.push(value);
                if let Place::At(src) = self.place(*var) {
                    self.emit(Op::SetBox(src), 0);
                }
            }
            Node::SetGlobal(symbol, value) => {
                self.push(value);
                let at = self.global(symbol);
                self.emit(Op::SetGlobal(at), 0);
            }
            Node::Define(symbol, value) => {
                self.push_named(value, None);
                let at = self.global(symbol);
                self.emit(Op::Define(at), 0);
            }
            Node::If(parts) => {
                let [test, then, otherwise] = &**parts;
                let fails = self.test(test);
                self.push(then);
                let end = self.here();
                self.emit(Op::Jump(0), -1);
                self.land_all(&fails);
                self.push(otherwise);
                self.land(end);
            }
            Node::Or(nodes) => {
                let (last, others) = nodes.split_last().expect("`or` with parts");
                let mut ends = Vec::new();
                for node in others {
                    self.push(node);
                    ends.push(self.here());
                    self.emit(Op::JumpOr(0), -1);
                }
                self.push(last);
                self.land_all(&ends);
            }
            Node::Seq(nodes) => {
                let (last, others) = nodes.split_last().expect("a sequence with parts");
                others.iter().for_each(|node| self.effect(node));
                self.push(last);
            }
            Node::Lambda(_) => self.push_named(node, None),
            Node::Cases(nodes) => {
                nodes.iter().for_each(|node| self.push(node));
                self.emit(Op::Cases(nodes.len() as u32), 1 - nodes.len() as isize);
            }
            Node::Call(callee, arguments) => self.call(callee, arguments, false),
            Node::Let(..) | Node::Letrec(..) | Node::Loop { .. } => {
                let before = self.f().depth;
                let body = self.bindings(node);
                self.push(body);
                let extra = self.f().depth - before - 1;
                if extra > 0 {
                    self.emit(Op::Slide(extra as u16), -(extra as isize));
                }
                self.end_loop(node);
            }
        }
    }

    fn end_loop(&mut self, node: &Node) {
        if let Node::Loop { .. } = node {
            self.f().loops.pop();
        }
    }

    /// Pushes the variables of a form that binds some, and returns its body.
    fn bindings<'n>(&mut self, node: &'n Node) -> &'n Node {
        match node {
            Node::Let(bindings, body) => {
                for (_, value) in bindings {
                    self.push(value);
                }
                let first = self.f().depth - bindings.len();
                let variables: Vec<Var> = bindings.iter().map(|(var, _)| *var).collect();
                for (i, var) in variables.iter().enumerate() {
                    self.bind(*var, first + i);
                }
                self.box_slots(&variables);
                body
            }
            Node::Letrec(bindings, body) => {
                // The boxes come first, so that the procedures can capture them.
                for (var, _) in bindings.iter().filter(|(var, _)| self.boxed[*var]) {
                    let depth = self.f().depth;
                    self.bind(*var, depth);
                    self.emit(Op::NewBox, 1);
                }
                for (var, value) in bindings {
                    if self.boxed[*var] {
                        self.push(value);
                        let Place::At(src) = self.place(*var) else { continue };
                        self.emit(Op::SetBox(src), 0);
                        self.emit(Op::Pop, -1);
                    } else {
                        let depth = self.f().depth;
                        self.push_named(value, Some(*var));
                        self.bind(*var, depth);
                    }
                }
                body
            }
            Node::Loop { name, variables, first, body } => {
                first.iter().for_each(|node| self.push(node));
                let slot = self.f().depth - variables.len();
                for (i, var) in variables.iter().enumerate() {
                    self.bind(*var, slot + i);
                }
                let (start, count) = (self.here(), variables.len());
                self.f().loops.push(Looping { name: *name, slot, count, start });
                self.box_slots(variables);
                body
            }
            _ => unreachable!("it binds no variables"),
        }
    }

    fn push_named(&mut self, node: &Node, own: Option<Var>) {
        let Node::Lambda(lambda) = node else { return self.push(node) };
        let code = self.function(lambda, own);
        let f = self.f();
        f.codes.push(code);
        let at = f.codes.len() as u32 - 1;
        self.emit(Op::Closure(at), 1);
    }

    /// The jumps that are taken if the test fails.
    fn test(&mut self, node: &Node) -> Vec<usize> {
        match node {
            Node::If(parts) if matches!(parts[2], Node::Const(Value::Bool(false))) => {
                let mut fails = self.test(&parts[0]);
                fails.extend(self.test(&parts[1]));
                return fails;
            }
            Node::Call(callee, arguments) => match (self.inline(callee), &arguments[..]) {
                (Some(Inline::One(One::Not)), [inner]) => {
                    // `(if (not a) ...)`: the jump over a jump is rare enough.
                    let fails = self.test(inner);
                    let at = self.here();
                    self.emit(Op::Jump(0), 0);
                    self.land_all(&fails);
                    return vec![at];
                }
                (Some(Inline::One(one)), [a]) if one.is_test() => {
                    let a = self.operand(a);
                    let at = self.here();
                    self.emit(Op::Unless1(one, a, 0), -Self::pops(&[a]));
                    return vec![at];
                }
                (Some(Inline::Two(two)), [a, b]) if two.is_test() => {
                    let (a, b) = (self.operand(a), self.operand(b));
                    let at = self.here();
                    self.emit(Op::Unless2(two, a, b, 0), -Self::pops(&[a, b]));
                    return vec![at];
                }
                _ => {}
            },
            _ => {}
        }
        self.push(node);
        let at = self.here();
        self.emit(Op::JumpUnless(0), -1);
        vec![at]
    }

    fn land_all(&mut self, jumps: &[usize]) {
        jumps.iter().for_each(|at| self.land(*at));
    }

    fn effect(&mut self, node: &Node) {
        if let Node::Const(_) = node {
            return;
        }
        self.push(node);
        self.emit(Op::Pop, -1);
    }

    /// The value is the result of the procedure, or of a loop's body that is its result.
    fn tail(&mut self, node: &Node) {
        match node {
            Node::If(parts) => {
                let [test, then, otherwise] = &**parts;
                let fails = self.test(test);
                let depth = self.f().depth;
                self.tail(then);
                self.f().depth = depth;
                self.land_all(&fails);
                self.tail(otherwise);
            }
            Node::Seq(nodes) => {
                let (last, others) = nodes.split_last().expect("a sequence with parts");
                others.iter().for_each(|node| self.effect(node));
                self.tail(last);
            }
            Node::Or(nodes) => {
                let (last, others) = nodes.split_last().expect("`or` with parts");
                for node in others {
                    self.push(node);
                    let at = self.here();
                    self.emit(Op::JumpOr(0), 0);
                    let next = self.here();
                    self.emit(Op::Jump(0), 0);
                    self.land(at);
                    self.emit(Op::Return, -1);
                    self.land(next);
                }
                self.tail(last);
            }
            Node::Call(callee, arguments) => self.call(callee, arguments, true),
            Node::Let(..) | Node::Letrec(..) | Node::Loop { .. } => {
                let body = self.bindings(node);
                self.tail(body);
                self.end_loop(node);
            }
            _ => {
                self.push(node);
                self.emit(Op::Return, -1);
            }
        }
    }

    /// An inlined procedure, if the global variable still has the value that this program gave it.
    fn inline(&self, callee: &Node) -> Option<Inline> {
        let Node::Global(symbol) = callee else { return None };
        let Value::Native(native) = &symbol.global.peek(self.m)?.0 else { return None };
        (native.name == symbol.name).then(|| Inline::named(native.name))?
    }

    fn call(&mut self, callee: &Node, arguments: &[Node], tail: bool) {
        let count = arguments.len();
        if let Node::Local(var) = callee
            && let Some(at) = self.f().loops.iter().position(|it| it.name == *var)
        {
            arguments.iter().for_each(|node| self.push(node));
            let Looping { slot, count, start, .. } = self.f().loops[at];
            let back = start as i64 - self.here() as i64 - 1;
            match (u8::try_from(count), i16::try_from(back)) {
                (Ok(count), Ok(back)) => self.emit(Op::Again { slot: slot as u16, count, back }, 0),
                _ => {
                    self.emit(Op::Rebind { slot: slot as u16, count: count as u16 }, 0);
                    self.emit(Op::Jump(back as i32 - 1), 0);
                }
            }
            // Nothing follows. The value that the surrounding code expects is the loop's.
            self.f().depth = self.f().depth + 1 - count;
            return;
        }
        match (self.inline(callee), arguments) {
            (Some(Inline::One(one)), [a]) => {
                let a = self.operand(a);
                self.emit(Op::One(one, a), 1 - Self::pops(&[a]));
            }
            (Some(Inline::Two(two)), [a, b]) => {
                let (a, b) = (self.operand(a), self.operand(b));
                self.emit(Op::Two(two, a, b), 1 - Self::pops(&[a, b]));
            }
            (Some(Inline::Two(two)), [a, b, rest @ ..]) if two.is_sum() => {
                let (a, b) = (self.operand(a), self.operand(b));
                self.emit(Op::Two(two, a, b), 1 - Self::pops(&[a, b]));
                for c in rest {
                    let c = self.operand(c);
                    self.emit(Op::Two(two, Src::STACK, c), -Self::pops(&[c]));
                }
            }
            (Some(Inline::VectorSet), [a, b, c]) => {
                [a, b, c].iter().for_each(|node| self.push(node));
                self.emit(Op::VectorSet, -2);
            }
            _ => return self.call_procedure(callee, arguments, count, tail),
        }
        if tail {
            self.emit(Op::Return, -1);
        }
    }

    fn call_procedure(&mut self, callee: &Node, arguments: &[Node], count: usize, tail: bool) {
        arguments.iter().for_each(|node| self.push(node));
        let change = 1 - count as isize;
        let wide = count as u16;
        self.too_large |= count > usize::from(u16::MAX);
        match callee {
            Node::Global(symbol) if count < 256 => {
                let at = self.global(symbol);
                let count = count as u8;
                let op =
                    if tail { Op::TailCallGlobal(at, count) } else { Op::CallGlobal(at, count) };
                self.emit(op, change);
            }
            Node::Local(var) if matches!(self.place(*var), Place::Own) => {
                self.emit(if tail { Op::TailCallOwn(wide) } else { Op::CallOwn(wide) }, change);
            }
            _ => {
                self.push(callee);
                self.emit(if tail { Op::TailCall(wide) } else { Op::Call(wide) }, change - 1);
            }
        }
    }
}

enum Inline {
    One(One),
    Two(Two),
    VectorSet,
}

impl Inline {
    fn named(name: &str) -> Option<Inline> {
        Some(match name {
            "car" => Inline::One(One::Car),
            "cdr" => Inline::One(One::Cdr),
            "caar" => Inline::One(One::Caar),
            "cadr" => Inline::One(One::Cadr),
            "cddr" => Inline::One(One::Cddr),
            "not" => Inline::One(One::Not),
            "null?" => Inline::One(One::IsNull),
            "pair?" => Inline::One(One::IsPair),
            "zero?" => Inline::One(One::IsZero),
            "symbol?" => Inline::One(One::IsSymbol),
            "vector?" => Inline::One(One::IsVector),
            "string?" => Inline::One(One::IsString),
            "char?" => Inline::One(One::IsChar),
            "string-length" => Inline::One(One::StringLength),
            "modulo" => Inline::Two(Two::Modulo),
            "char=?" => Inline::Two(Two::CharEqual),
            "eof-object?" => Inline::One(One::IsEof),
            "vector-length" => Inline::One(One::VectorLength),
            "+" => Inline::Two(Two::Add),
            "-" => Inline::Two(Two::Sub),
            "*" => Inline::Two(Two::Mul),
            "<" => Inline::Two(Two::Less),
            ">" => Inline::Two(Two::Greater),
            "<=" => Inline::Two(Two::LessEqual),
            ">=" => Inline::Two(Two::GreaterEqual),
            "=" => Inline::Two(Two::Equal),
            "eq?" => Inline::Two(Two::Eq),
            "eqv?" => Inline::Two(Two::Eqv),
            "cons" => Inline::Two(Two::Cons),
            "vector-ref" => Inline::Two(Two::VectorRef),
            "string-ref" => Inline::Two(Two::StringRef),
            "quotient" => Inline::Two(Two::Quotient),
            "remainder" => Inline::Two(Two::Remainder),
            "vector-set!" => Inline::VectorSet,
            _ => return None,
        })
    }
}

impl One {
    fn is_test(self) -> bool {
        !matches!(
            self,
            One::Car
                | One::Cdr
                | One::Caar
                | One::Cadr
                | One::Cddr
                | One::VectorLength
                | One::StringLength
        )
    }
}

impl Two {
    fn is_test(self) -> bool {
        use Two::*;
        matches!(self, Less | Greater | LessEqual | GreaterEqual | Equal | Eq | Eqv | CharEqual)
    }

    fn is_sum(self) -> bool {
        matches!(self, Two::Add | Two::Sub | Two::Mul)
    }
}
