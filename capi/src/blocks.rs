//! Blocks of memory that objects own outside the heap: `PyMem_Malloc` and its relatives.
//!
//! A block comes from the process's allocator, and its bytes count as memory outside the heap. The
//! 16 bytes before it, its *front*, have its size, so that a free subtracts what the allocation has
//! added. Because `PyObject_Free` takes both blocks and plain objects, the front also has a mark,
//! which depends on the address and distinguishes blocks from other pointers.

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::ptr::NonNull;

use standstill::dynamic::{self, Address};
use standstill::{Code, Fault, Mutator};

use crate::call::{self, Given, export};

/// What lies directly before a block. A block has its alignment: that of `max_align_t`.
#[repr(C, align(16))]
struct Front {
    size: usize,
    mark: usize,
}

const _: () = assert!(size_of::<Front>() == align_of::<Front>());

impl Front {
    /// The layout of the front with a block of `size` bytes, at least one, so that an empty block
    /// has an address of its own. Fails if no pointer can count the bytes.
    fn layout(size: usize) -> Result<Layout, Fault> {
        let bytes = size.max(1).checked_add(size_of::<Self>());
        let layout = bytes.and_then(|all| Layout::from_size_align(all, align_of::<Self>()).ok());
        layout.ok_or_else(refused)
    }

    fn mark(front: NonNull<Self>) -> usize {
        const MARK: usize = 0x5354_414E_4453_5449_u64 as usize;
        front.addr().get() ^ MARK
    }

    /// Writes the front of a new block, and counts the block instead of one of `before` bytes.
    ///
    /// # Safety
    ///
    /// `memory` is null, or has the [layout](Self::layout) of `size`.
    unsafe fn begin(
        m: &Mutator,
        memory: *mut u8,
        size: usize,
        before: usize,
    ) -> Result<*mut c_void, Fault> {
        let front = NonNull::new(memory.cast::<Self>()).ok_or_else(refused)?;
        m.adjust_external_bytes(size.cast_signed().wrapping_sub_unsigned(before));
        // SAFETY: as the caller says.
        unsafe {
            front.write(Self { size, mark: Self::mark(front) });
            Ok(front.add(1).as_ptr().cast())
        }
    }

    /// The front of a block. `None`: the pointer is none of a block.
    ///
    /// # Safety
    ///
    /// Rule *argument*: the pointer is that of a block or an object, or the heap is in checked
    /// mode.
    unsafe fn of(m: &Mutator, block: NonNull<c_void>) -> Option<NonNull<Self>> {
        if !block.cast::<Self>().is_aligned() {
            return None;
        }
        let front = NonNull::new(block.as_ptr().cast::<Self>().wrapping_sub(1))?;
        // SAFETY: rule *argument*: the lookup accepts any address. A front is outside of all heaps
        // and can be read. So can the bytes before an object, because each page has a header.
        unsafe {
            let is_readable =
                !dynamic::is_checked(m) || dynamic::look_up(m, front.cast()) == Address::Outside;
            (is_readable && (*front.as_ptr()).mark == Self::mark(front)).then_some(front)
        }
    }

    /// Frees the block.
    ///
    /// # Safety
    ///
    /// Rule *argument*: C gives the block up.
    unsafe fn end(front: NonNull<Self>, m: &Mutator) -> Result<(), Fault> {
        // SAFETY: as the caller says: the layout with which the block was made.
        unsafe {
            let size = (*front.as_ptr()).size;
            m.adjust_external_bytes(0_isize.wrapping_sub_unsigned(size));
            // Cleared, because the mark must not survive in memory that is used again.
            (&raw mut (*front.as_ptr()).mark).write_volatile(0);
            alloc::dealloc(front.as_ptr().cast(), Self::layout(size)?);
        }
        Ok(())
    }
}

fn refused() -> Fault {
    Fault::new(Code::Memory, "argument")
}

/// The front of a block from C. Fails for all other pointers.
fn front(m: &Mutator, block: Given<'_, c_void>) -> Result<NonNull<Front>, Fault> {
    let block = block.some()?;
    // SAFETY: rule *argument*; the lookup accepts any address.
    unsafe {
        Front::of(m, block).ok_or_else(|| {
            let code = match dynamic::look_up(m, block.cast()) {
                Address::Live | Address::Static => Code::WrongAllocator,
                _ => Code::ForeignPointer,
            };
            let text = "the pointer is not one of PyMem_Malloc, PyMem_Calloc or PyMem_Realloc";
            Fault::new(code, "argument").at(block.addr().get()).because(text)
        })
    }
}

fn new_block(
    function: &'static str,
    size: Option<usize>,
    allocate: unsafe fn(Layout) -> *mut u8,
) -> *mut c_void {
    call::fallible(function, std::ptr::null_mut(), |m| {
        let size = size.ok_or_else(refused)?;
        let layout = Front::layout(size)?;
        // SAFETY: rule *bounds*: the layout has a front at least.
        unsafe { Front::begin(m, allocate(layout), size, 0) }
    })
}

/// Frees a block, for a function that frees objects, too. `false`: the pointer is not one of a
/// block.
pub(crate) fn is_freed(function: &'static str, block: Given<'_, c_void>) -> bool {
    call::reported(function, true, |m| {
        let block = block.some()?;
        // SAFETY: rule *argument*: C gives the block up.
        unsafe {
            Front::of(m, block).map_or(Ok(false), |front| Front::end(front, m).map(|()| true))
        }
    })
}

export! {
    /// Allocates a block.
    fn standstill_PyMem_Malloc(size: usize) -> *mut c_void {
        new_block("PyMem_Malloc", Some(size), alloc::alloc)
    }

    /// Allocates a block of zeroes.
    fn standstill_PyMem_Calloc(nelem: usize, elsize: usize) -> *mut c_void {
        new_block("PyMem_Calloc", nelem.checked_mul(elsize), alloc::alloc_zeroed)
    }

    /// Changes the size of a block.
    #[given(block)]
    fn standstill_PyMem_Realloc(block: *mut c_void, size: usize) -> *mut c_void {
        const FUNCTION: &str = "PyMem_Realloc";
        if block.is_null() {
            return new_block(FUNCTION, Some(size), alloc::alloc);
        }
        call::fallible(FUNCTION, std::ptr::null_mut(), |m| {
            let front = front(m, block)?;
            let new = Front::layout(size)?;
            // SAFETY: rule *argument*: a block of C's, which it gives up if there is a new one.
            unsafe {
                let before = (*front.as_ptr()).size;
                let memory = front.as_ptr().cast();
                let memory = alloc::realloc(memory, Front::layout(before)?, new.size());
                Front::begin(m, memory, size, before)
            }
        })
    }

    /// Frees a block.
    #[given(block)]
    fn standstill_PyMem_Free(block: *mut c_void) {
        if !block.is_null() {
            // SAFETY: rule *argument*: C gives the block up.
            call::reported("PyMem_Free", (), |m| unsafe { Front::end(front(m, block)?, m) });
        }
    }
}
