//! Values, and the objects to which they refer.
//!
//! A value is a tag and one word: a number, a character, or a handle. Only fields that the language
//! can change are cells, because a cell costs a lock for each access, and an immutable field costs
//! nothing. So a closure copies the values of its variables, and only a variable that is assigned
//! lies in a [`VarBox`]. A global variable is an [`AtomicGc`]: a read takes no lock, which matters
//! more than the allocation that a write costs.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

use num_bigint::BigInt;
use num_rational::BigRational;
use standstill::{AnyGc, AtomicGc, Gc, GcCell, GcSlice, Guardian, Mutator, Trace};

use crate::code::{Code, Special};
use crate::port::Port;
use crate::symbol::Symbol;
use crate::syntax::Macro;
use crate::table::Table;
use crate::vm::{Ctx, Segment};

/// A value of the language, in 16 bytes.
#[derive(Default, Trace)]
pub enum Value {
    /// What an expression without a useful value returns.
    #[default]
    Unspecified,
    /// A variable whose initial value is not computed yet.
    Undefined,
    Eof,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Char(char),
    /// A procedure of this program.
    Native(&'static Native),
    /// The keyword of a special form.
    Special(Special),
    Symbol(Gc<Symbol>),
    Pair(Gc<Pair>),
    Str(Gc<Str>),
    Vector(Gc<Vector>),
    Bytes(Gc<Bytes>),
    Big(Gc<Big>),
    Ratio(Gc<Ratio>),
    Closure(Closure),
    Cases(GcSlice<(), Closure>),
    Box(Gc<VarBox>),
    Values(GcSlice<(), Value>),
    Continuation(Gc<Continuation>),
    Record(GcSlice<Gc<RecordType>, GcCell<Value>>),
    RecordType(Gc<RecordType>),
    Condition(Gc<Condition>),
    Promise(Gc<Promise>),
    Parameter(Gc<Parameter>),
    Table(Gc<Table>),
    Port(Gc<Port>),
    Macro(Gc<Macro>),
    Thread(Gc<Thread>),
    Mutex(Gc<Lock>),
    CondVar(Gc<Signal>),
    Channel(Gc<Channel>),
    Guardian(Gc<Guard>),
}

const _: () = assert!(size_of::<Value>() == 16);

/// A procedure: its code, and the values of its free variables, in one object.
pub type Closure = GcSlice<Gc<Code>, Value>;

/// The result of a procedure, or the object that it raises.
pub type Res<T = Value> = Result<T, Value>;

/// A procedure in Rust.
#[derive(Debug)]
pub struct Native {
    pub name: &'static str,
    /// The numbers of arguments that it takes; 255: any number.
    pub min: u8,
    pub max: u8,
    pub run: Run,
}

#[derive(Clone, Copy, Debug)]
pub enum Run {
    Plain(fn(&mut Ctx, &mut [Value]) -> Res),
    /// What only the loop of the machine can do.
    Apply,
    CallCc,
    ApplyValues,
    Throw,
    Eval,
}

#[derive(Default, Trace)]
pub struct Pair {
    pub ends: GcCell<(Value, Value)>,
}

/// A string, as characters, so that an index takes constant time.
#[derive(Trace)]
pub struct Str {
    pub chars: GcCell<Vec<char>>,
}

#[derive(Trace)]
pub struct Vector {
    pub items: GcCell<Vec<Value>>,
}

#[derive(Trace)]
pub struct Bytes {
    pub bytes: GcCell<Vec<u8>>,
}

#[derive(Trace)]
#[trace(untracked)]
pub struct Big(#[trace(skip)] pub BigInt);

#[derive(Trace)]
#[trace(untracked)]
pub struct Ratio(#[trace(skip)] pub BigRational);

/// Objects that are dead but for the guardian that gives them back.
#[derive(Trace)]
#[trace(untracked)]
pub struct Guard(pub Guardian<AnyGc>);

/// A local variable that is assigned.
#[derive(Trace)]
pub struct VarBox {
    pub value: GcCell<Value>,
}

/// The value of a global variable. An assignment makes a new one.
#[derive(Trace)]
pub struct Global(pub Value);

/// The part of a continuation that is no stack.
#[derive(Clone, Default, Trace)]
pub struct Dynamic {
    /// A list of (before . after), the innermost first.
    pub winders: Value,
    pub handlers: Value,
    /// A list of (parameter . box).
    pub parameters: Value,
}

#[derive(Trace)]
pub struct Continuation {
    pub segment: Option<Gc<Segment>>,
    pub dynamic: Dynamic,
}

#[derive(Trace)]
pub struct RecordType {
    pub name: String,
    pub fields: Vec<Gc<Symbol>>,
}

/// What `error` and the procedures of this program raise.
#[derive(Trace)]
pub struct Condition {
    pub kind: Kind,
    pub message: Value,
    pub irritants: Value,
}

#[derive(Clone, Copy, PartialEq, Eq, Trace)]
pub enum Kind {
    Error,
    File,
    Read,
    /// The reason why `thread-join!` failed: the only irritant.
    Uncaught,
    Timeout,
}

#[derive(Trace)]
pub struct Promise {
    /// Whether it is forced, and its value or else the procedure that makes it.
    pub state: GcCell<(bool, Value)>,
}

#[derive(Trace)]
pub struct Parameter {
    pub value: VarBox,
    pub converter: Value,
}

/// A flag or a count on which threads wait, detached. The mutexes are std's, and no references lie
/// behind them: those are in cells.
#[derive(Default, Trace)]
pub struct Signal {
    pub count: Mutex<u64>,
    pub changed: Condvar,
}

#[derive(Trace)]
pub struct Thread {
    pub name: Value,
    pub thunk: GcCell<Value>,
    /// What the thread returned or raised. Set before `done`.
    pub result: GcCell<Option<Result<Value, Value>>>,
    pub done: Signal,
    pub specific: GcCell<Value>,
}

#[derive(Trace)]
pub struct Lock {
    pub name: Value,
    /// 1 while it is locked.
    pub held: Signal,
    pub specific: GcCell<Value>,
}

/// A queue between threads. `ready` counts the items that nobody has claimed yet.
#[derive(Default, Trace)]
pub struct Channel {
    pub items: GcCell<VecDeque<Value>>,
    pub ready: Signal,
}

impl Clone for Value {
    /// Most values that a machine copies are numbers and other values without an object.
    #[inline(always)]
    fn clone(&self) -> Self {
        match self {
            Value::Int(n) => Value::Int(*n),
            Value::Pair(pair) => Value::Pair(pair.clone()),
            other => other.copy(),
        }
    }
}

impl Value {
    #[inline(never)]
    fn copy(&self) -> Self {
        macro_rules! copy {
            ($($handle:ident)*) => {
                match self {
                    Value::Unspecified => Value::Unspecified,
                    Value::Undefined => Value::Undefined,
                    Value::Eof => Value::Eof,
                    Value::Nil => Value::Nil,
                    $(Value::$handle(it) => Value::$handle(it.clone()),)*
                }
            };
        }
        copy!(Bool Int Float Char Native Special Symbol Pair Str Vector Bytes Big Ratio Closure
              Cases Box Values Continuation Record RecordType Condition Promise Parameter Table
              Port Macro Thread Mutex CondVar Channel Guardian)
    }

    /// The object of the value, whatever its type; `None`: it is none, such as a number.
    pub fn object(&self) -> Option<AnyGc> {
        macro_rules! object {
            ($($handle:ident)*; $($slice:ident)*) => {
                match self {
                    $(Value::$handle(it) => Some(Gc::into_any(it.clone())),)*
                    $(Value::$slice(it) => Some(GcSlice::into_any(it.clone())),)*
                    _ => None,
                }
            };
        }
        object!(Symbol Pair Str Vector Bytes Big Ratio Box Continuation RecordType Condition Promise
                Parameter Table Port Macro Thread Mutex CondVar Channel Guardian;
                Closure Cases Values Record)
    }

    /// The value of an [`object`](Self::object).
    pub fn of_object(mut object: AnyGc, m: &Mutator) -> Self {
        macro_rules! kinds {
            ($($handle:ident $cast:ident::<$($ty:ty),*>,)*) => {$(
                object = match object.$cast::<$($ty),*>(m) {
                    Ok(it) => return Value::$handle(it),
                    Err(other) => other,
                };
            )*};
        }
        kinds! {
            Pair downcast::<Pair>,
            Record downcast_slice::<Gc<RecordType>, GcCell<Value>>,
            Str downcast::<Str>,
            Vector downcast::<Vector>,
            Closure downcast_slice::<Gc<Code>, Value>,
            Cases downcast_slice::<(), Closure>,
            Symbol downcast::<Symbol>,
            Bytes downcast::<Bytes>,
            Big downcast::<Big>,
            Ratio downcast::<Ratio>,
            Box downcast::<VarBox>,
            Values downcast_slice::<(), Value>,
            Continuation downcast::<Continuation>,
            RecordType downcast::<RecordType>,
            Condition downcast::<Condition>,
            Promise downcast::<Promise>,
            Parameter downcast::<Parameter>,
            Table downcast::<Table>,
            Port downcast::<Port>,
            Macro downcast::<Macro>,
            Thread downcast::<Thread>,
            Mutex downcast::<Lock>,
            CondVar downcast::<Signal>,
            Channel downcast::<Channel>,
            Guardian downcast::<Guard>,
        }
        unreachable!("an object of another kind: {}", object.type_name(m))
    }

    /// Whether the value owns nothing, so that it needs no drop.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        matches!(
            self,
            Value::Unspecified
                | Value::Undefined
                | Value::Eof
                | Value::Nil
                | Value::Bool(_)
                | Value::Int(_)
                | Value::Float(_)
                | Value::Char(_)
        )
    }

    /// Drops the value. Without a look at the table of all kinds if it is a number.
    #[inline(always)]
    pub fn discard(self) {
        match self {
            Value::Int(_) | Value::Bool(_) | Value::Nil | Value::Unspecified => {
                std::mem::forget(self); // owns nothing
            }
            Value::Pair(pair) => drop(pair),
            other => other.drop_any(),
        }
    }

    #[inline(never)]
    fn drop_any(self) {}

    #[inline(always)]
    pub fn is_true(&self) -> bool {
        !matches!(self, Value::Bool(false))
    }

    pub fn is_procedure(&self) -> bool {
        matches!(
            self,
            Value::Closure(_)
                | Value::Cases(_)
                | Value::Native(_)
                | Value::Continuation(_)
                | Value::Parameter(_)
        )
    }

    #[inline(always)]
    pub fn cons(m: &Mutator, car: Value, cdr: Value) -> Value {
        Value::Pair(m.alloc(Pair { ends: GcCell::new((car, cdr)) }))
    }

    pub fn list(
        m: &Mutator,
        items: impl IntoIterator<Item = Value, IntoIter: DoubleEndedIterator>,
    ) -> Value {
        Self::list_to(m, items, Value::Nil)
    }

    pub fn list_to(
        m: &Mutator,
        items: impl IntoIterator<Item = Value, IntoIter: DoubleEndedIterator>,
        end: Value,
    ) -> Value {
        items.into_iter().rev().fold(end, |rest, item| Self::cons(m, item, rest))
    }

    pub fn string(m: &Mutator, text: &str) -> Value {
        Self::chars(m, text.chars().collect())
    }

    pub fn chars(m: &Mutator, chars: Vec<char>) -> Value {
        Value::Str(m.alloc(Str { chars: GcCell::new(chars) }))
    }

    pub fn vector(m: &Mutator, items: Vec<Value>) -> Value {
        Value::Vector(m.alloc(Vector { items: GcCell::new(items) }))
    }

    pub fn bytes(m: &Mutator, bytes: Vec<u8>) -> Value {
        Value::Bytes(m.alloc(Bytes { bytes: GcCell::new(bytes) }))
    }

    pub fn boxed(m: &Mutator, value: Value) -> Value {
        Value::Box(m.alloc(VarBox { value: GcCell::new(value) }))
    }

    /// The head and the tail of a pair.
    #[inline(always)]
    pub fn ends(&self, m: &Mutator) -> Option<(Value, Value)> {
        let Value::Pair(pair) = self else { return None };
        Some(pair.ends.get(m))
    }

    /// The items of a list, and what ends it: `()` if it is proper. A circular list ends at the
    /// pair that is met twice.
    pub fn items(&self, m: &Mutator) -> (Vec<Value>, Value) {
        let (mut items, mut rest, mut mark, mut limit) = (Vec::new(), self.clone(), None, 1 << 10);
        while let Value::Pair(pair) = &rest {
            if mark.as_ref() == Some(pair) {
                break;
            }
            if items.len() == limit {
                (mark, limit) = (Some(pair.clone()), limit * 2);
            }
            let (head, tail) = pair.ends.get(m);
            items.push(head);
            rest = tail;
        }
        (items, rest)
    }

    /// The items of a proper list.
    pub fn proper(&self, m: &Mutator) -> Option<Vec<Value>> {
        let (items, Value::Nil) = self.items(m) else { return None };
        Some(items)
    }

    /// `eq?`, and `eqv?` except for numbers beyond 64 bits.
    #[inline(always)]
    pub fn is_same(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Symbol(a), Value::Symbol(b)) => a == b,
            _ => self.is_same_object(other),
        }
    }

    fn is_same_object(&self, other: &Value) -> bool {
        macro_rules! same {
            ($($handle:ident)*) => {
                match (self, other) {
                    (Value::Unspecified, Value::Unspecified)
                    | (Value::Undefined, Value::Undefined)
                    | (Value::Eof, Value::Eof)
                    | (Value::Nil, Value::Nil) => true,
                    (Value::Float(a), Value::Float(b)) => a.to_bits() == b.to_bits(),
                    (Value::Native(a), Value::Native(b)) => std::ptr::eq(*a, *b),
                    $((Value::$handle(a), Value::$handle(b)) => a == b,)*
                    _ => false,
                }
            };
        }
        same!(Bool Char Special Symbol Pair Str Vector Bytes Big Ratio Closure Cases Box Values
              Continuation Record RecordType Condition Promise Parameter Table Port Macro Thread
              Mutex CondVar Channel Guardian)
    }

    pub fn is_eqv(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Big(a), Value::Big(b)) => a.0 == b.0,
            (Value::Ratio(a), Value::Ratio(b)) => a.0 == b.0,
            _ => self.is_same(other),
        }
    }

    /// `equal?`. Pairs in the tail of a pair take no stack. Circular values do not end.
    pub fn is_equal(&self, other: &Value, m: &Mutator) -> bool {
        let (mut a, mut b) = (self.clone(), other.clone());
        loop {
            match (&a, &b) {
                (Value::Pair(x), Value::Pair(y)) => {
                    if x == y {
                        return true;
                    }
                    let ((x, x_rest), (y, y_rest)) = (x.ends.get(m), y.ends.get(m));
                    if !x.is_equal(&y, m) {
                        return false;
                    }
                    (a, b) = (x_rest, y_rest);
                }
                (Value::Str(x), Value::Str(y)) => {
                    return x == y || x.chars.get(m) == *y.chars.lock(m);
                }
                (Value::Bytes(x), Value::Bytes(y)) => {
                    return x == y || x.bytes.get(m) == *y.bytes.lock(m);
                }
                (Value::Vector(x), Value::Vector(y)) => {
                    if x == y {
                        return true;
                    }
                    let (x, y) = (x.items.get(m), y.items.get(m));
                    return x.len() == y.len() && x.iter().zip(&y).all(|(x, y)| x.is_equal(y, m));
                }
                _ => return a.is_eqv(&b),
            }
        }
    }
}

impl From<bool> for Value {
    fn from(it: bool) -> Self {
        Value::Bool(it)
    }
}

impl From<usize> for Value {
    fn from(it: usize) -> Self {
        Value::Int(it as i64)
    }
}

impl Promise {
    pub fn make(m: &Mutator, forced: bool, value: Value) -> Value {
        Value::Promise(m.alloc(Promise { state: GcCell::new((forced, value)) }))
    }
}

/// A slot for a global variable's value.
pub type Slot = AtomicGc<Global>;
