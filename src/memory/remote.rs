//! A thread may free a cell of a page that another thread owns, but may not touch the owner's free
//! bits. So it pushes the cell to a stack of the page, which the owner drains.

use std::ptr::NonNull;

use crate::base::sync::Ordering;
use crate::memory::address_map::Map;
use crate::memory::quarantine::Quarantine;
use crate::memory::shape::{GRANULE, GRANULE_SHIFT, PAGE_GRANULES, PAGE_SIZE};
use crate::memory::table::PageTable;

impl<A: Map> PageTable<A> {
    /// Frees a cell of a page that another thread owns. The exchange is the last access, because
    /// after it the page may have a new owner, or be free.
    ///
    /// # Safety
    ///
    /// `cell` is the start of a cell in use of a small page of this space, and the caller owns it.
    pub(crate) unsafe fn push_remote(&self, cell: NonNull<u8>) {
        let addr = cell.as_ptr().addr();
        // SAFETY: rule *mapped*: the cell lies on a page that was handed out.
        let page = unsafe { self.page_of(addr) };
        let slot = ((addr & (PAGE_SIZE - 1)) >> GRANULE_SHIFT) as u32;
        // A guess instead of a load, because it is mostly right, so that the cache line moves only
        // once, for writing.
        let mut head = 0;
        loop {
            // SAFETY: rule *owner*: the cell is dead, and this thread still owns it. It is at least
            // one granule long and aligned to one.
            unsafe { cell.cast::<u32>().write(head) };
            // Release: the draining thread sees the link and all writes of this thread to the cell,
            // because pushes in between are read-modify-writes, which continue the release
            // sequence. Relaxed on failure, because the head is copied and never followed. A drain
            // takes the whole stack, so a head that was removed and pushed again is still the right
            // link.
            match page.remote.compare_exchange_weak(
                head,
                slot,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Moves the remote stack of a page into its free bits.
    ///
    /// # Safety
    ///
    /// The caller owns the page.
    pub(crate) unsafe fn drain_remote(&self, page: u32, quarantine: Option<&Quarantine>) {
        // SAFETY: rule *mapped*: an owned page was handed out.
        let info = unsafe { self.info(page) };
        if !info.has_remote() {
            return;
        }
        // Acquire: see `push_remote`.
        let mut slot = info.remote.swap(0, Ordering::Acquire) as usize;
        let start = self.page_start(page);
        // SAFETY: rule *owner*: the caller owns the page. The chain consists of dead cells of this
        // page, which the exchange has made the caller's.
        unsafe {
            let mut drained = 0;
            self.free_bits(page, |bits| {
                while slot != 0 {
                    debug_assert!(
                        bits[slot / 64] & (1 << (slot % 64)) == 0,
                        "a cell was freed twice"
                    );
                    bits[slot / 64] |= 1 << (slot % 64);
                    let cell = start.add(slot * GRANULE);
                    slot = cell.cast::<u32>().read() as usize;
                    if let Some(quarantine) = quarantine {
                        self.check_link(page, slot);
                        quarantine.overwrite_link(cell);
                    }
                    drained += 1;
                }
            });
            info.owned(|owned| owned.free += drained);
        }
    }

    /// Panics if a link of a page's remote stack does not lead to a cell.
    pub(crate) fn check_link(&self, page: u32, slot: usize) {
        let addr = self.address(page as usize * PAGE_GRANULES + slot);
        assert!(
            slot == 0 || (slot < PAGE_GRANULES && self.starts_at(addr)),
            "a freed cell of page {page} was written to: its link to the next freed cell now leads to \
             granule {slot}, where no cell starts"
        );
    }
}
