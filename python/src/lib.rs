//! The extension module of `standstill-gc`.
//!
//! It collects the objects of a free-threaded CPython with standstill's collector. The Python
//! package around it has the interface for programs.
//!
//! | module | task |
//! |---|---|
//! | [`layout`] | the interpreter's structures, from its headers |
//! | [`checks`], [`plausible`] | the conditions under which the package becomes active |
//! | [`stop`], [`pages`], [`counts`], [`frames`], [`foreign`], [`traversals`], [`weak`],
//! [`finalizers`] | one aspect of the interpreter each |
//! | [`model`] | all of them, as standstill's object model |
//! | [`collection`] | one collection |
//! | [`switch`], [`block`] | which collector the process uses, and whether automatic collections
//! run; blocks of `defer` |
//! | [`automatic`] | the package's thread, which runs automatic collections, or requests them of a
//! thread of the program |
//! | [`child`] | automatic collections that search in a child process |
//! | [`signals`] | no signal arrives at that thread |
//! | [`pressure`] | threads that make garbage too fast are held up |
//! | [`checked`] | the comparison with CPython's collector |
//! | [`records`] | the figures of the last collections |
//! | [`interface`] | the functions of the module |
//! | [`python`] | small calls into the interpreter |

mod automatic;
mod block;
mod checked;
mod checks;
mod child;
mod collection;
mod counts;
mod finalizers;
#[cfg(py315)]
mod foreign;
mod frames;
mod interface;
mod layout;
mod model;
mod pages;
mod plausible;
mod pressure;
mod python;
mod records;
mod signals;
mod stop;
mod switch;
mod traversals;
mod weak;

pub use interface::PyInit__standstill_gc;
