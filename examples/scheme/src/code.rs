//! The code of the machine, and the tree from which `codegen` makes it.

use standstill::{Gc, Trace};

use crate::symbol::Symbol;
use crate::value::Value;

/// The special forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Trace)]
pub enum Special {
    Quote,
    Quasiquote,
    Lambda,
    Define,
    Set,
    If,
    Begin,
    Let,
    LetStar,
    Letrec,
    Do,
    And,
    Or,
    Cond,
    Case,
    When,
    Unless,
    DefineSyntax,
    LetSyntax,
    DefineRecord,
    CaseLambda,
    Delay,
    DelayForce,
    Include,
    Import,
    CondExpand,
}

impl Special {
    pub const NAMES: &[(&str, Special)] = &[
        ("quote", Special::Quote),
        ("quasiquote", Special::Quasiquote),
        ("lambda", Special::Lambda),
        ("define", Special::Define),
        ("set!", Special::Set),
        ("if", Special::If),
        ("begin", Special::Begin),
        ("let", Special::Let),
        ("let*", Special::LetStar),
        ("letrec", Special::Letrec),
        ("letrec*", Special::Letrec),
        ("do", Special::Do),
        ("and", Special::And),
        ("or", Special::Or),
        ("cond", Special::Cond),
        ("case", Special::Case),
        ("when", Special::When),
        ("unless", Special::Unless),
        ("define-syntax", Special::DefineSyntax),
        ("let-syntax", Special::LetSyntax),
        ("letrec-syntax", Special::LetSyntax),
        ("define-record-type", Special::DefineRecord),
        ("case-lambda", Special::CaseLambda),
        ("delay", Special::Delay),
        ("delay-force", Special::DelayForce),
        ("include", Special::Include),
        ("import", Special::Import),
        ("cond-expand", Special::CondExpand),
    ];
}

/// A local variable, by its place in the compiler's list.
pub type Var = usize;

pub enum Node {
    Const(Value),
    Local(Var),
    Global(Gc<Symbol>),
    SetLocal(Var, Box<Node>),
    SetGlobal(Gc<Symbol>, Box<Node>),
    Define(Gc<Symbol>, Box<Node>),
    If(Box<[Node; 3]>),
    Or(Vec<Node>),
    Seq(Vec<Node>),
    Lambda(Box<Lambda>),
    Cases(Vec<Node>),
    Call(Box<Node>, Vec<Node>),
    Let(Vec<(Var, Node)>, Box<Node>),
    /// The variables that are used before they are initialized lie in boxes.
    Letrec(Vec<(Var, Node)>, Box<Node>),
    /// A procedure that is called only in tail positions of its own body, after one first call: its
    /// variables are slots, and the calls are jumps.
    Loop {
        name: Var,
        variables: Vec<Var>,
        first: Vec<Node>,
        body: Box<Node>,
    },
}

pub struct Lambda {
    pub name: String,
    pub parameters: Vec<Var>,
    /// Whether the last parameter takes the rest of the arguments.
    pub rest: bool,
    pub body: Node,
}

/// An operand: a slot of the frame, the top of the stack, a small number, or a captured value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Src(pub u16);

impl Src {
    pub const STACK: Src = Src(1 << 14);
    pub const LIMIT: usize = 1 << 14;

    pub fn slot(slot: usize) -> Src {
        Src(slot as u16)
    }

    pub fn captured(index: usize) -> Src {
        Src(3 << 14 | index as u16)
    }

    pub fn int(n: i64) -> Option<Src> {
        (-(1 << 13)..1 << 13).contains(&n).then_some(Src(2 << 14 | (n as u16 & 0x3fff)))
    }

    #[inline(always)]
    pub fn kind(self) -> u16 {
        self.0 >> 14
    }

    #[inline(always)]
    pub fn index(self) -> usize {
        usize::from(self.0 & 0x3fff)
    }

    #[inline(always)]
    pub fn number(self) -> i64 {
        i64::from((self.0 << 2) as i16 >> 2)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum One {
    Car,
    Cdr,
    Caar,
    Cadr,
    Cddr,
    Not,
    IsNull,
    IsPair,
    IsZero,
    IsSymbol,
    IsVector,
    VectorLength,
    IsEof,
    IsString,
    IsChar,
    StringLength,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Two {
    Add,
    Sub,
    Mul,
    Less,
    Greater,
    LessEqual,
    GreaterEqual,
    Equal,
    Eq,
    Eqv,
    Cons,
    VectorRef,
    Quotient,
    Remainder,
    Modulo,
    CharEqual,
    StringRef,
}

/// An instruction, in 8 bytes. Jumps are relative to the next instruction.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    Push(Src),
    Const(u32),
    /// The value in a box, which a slot or a captured value is.
    Unbox(Src),
    SetBox(Src),
    /// Puts the value of a slot into a box.
    Box(u16),
    NewBox,
    Global(u32),
    SetGlobal(u32),
    Define(u32),
    /// The running procedure.
    Own,
    Closure(u32),
    Cases(u32),
    Jump(i32),
    JumpUnless(i32),
    /// Jumps if the top is true; otherwise removes it.
    JumpOr(i32),
    /// Jumps if the test fails.
    Unless1(One, Src, i16),
    Unless2(Two, Src, Src, i16),
    One(One, Src),
    Two(Two, Src, Src),
    VectorSet,
    /// The arguments and then the procedure are on the stack.
    Call(u16),
    TailCall(u16),
    CallGlobal(u32, u8),
    TailCallGlobal(u32, u8),
    CallOwn(u16),
    TailCallOwn(u16),
    Return,
    Pop,
    /// Removes values below the top.
    Slide(u16),
    /// Moves the arguments of a loop into its slots, and jumps back.
    Again {
        slot: u16,
        count: u8,
        back: i16,
    },
    /// Like `Again`, and the jump follows.
    Rebind {
        slot: u16,
        count: u16,
    },
}

const _: () = assert!(size_of::<Op>() == 8);

/// Where a new closure finds a value to capture.
#[derive(Clone, Copy, Debug)]
pub enum Capture {
    From(Src),
    Own,
}

#[derive(Trace)]
#[trace(label = Code::label)]
pub struct Code {
    pub name: String,
    #[trace(skip)]
    pub ops: Box<[Op]>,
    pub constants: Box<[Value]>,
    pub globals: Box<[Gc<Symbol>]>,
    pub codes: Box<[Gc<Code>]>,
    #[trace(skip)]
    pub captures: Box<[Capture]>,
    pub required: u32,
    pub rest: bool,
}

impl Code {
    /// Whether the procedure takes this number of arguments.
    pub fn takes(&self, count: usize) -> bool {
        let required = self.required as usize;
        count == required || (self.rest && count > required)
    }

    fn label(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}
