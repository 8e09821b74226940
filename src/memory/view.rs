//! The verifier compares the pages and their free cells with the rules, although only owners may
//! read them. So it has a snapshot of the pool, and in a stop a proof that the owners stand still.

use std::ops::Deref;

use crate::base::sync::Ordering;
use crate::memory::address_map::AddressMap;
use crate::memory::page::{FreeBits, SAMPLED};
use crate::memory::shape::{GRANULE, PAGE_GRANULES, PageKind};
use crate::memory::size_class::CLASSES;
use crate::memory::space::Space;
use crate::memory::sparse::HEADER_PIECE;

/// A snapshot of the pool, for the verifier.
#[derive(Debug)]
pub(crate) struct PoolView {
    /// Free runs: first page and length, ascending.
    pub(crate) holes: Vec<(u32, u32)>,
    /// Abandoned pages, with the mark of their list in place of an arena, and their classes.
    pub(crate) abandoned: Vec<(u32, u8, u32)>,
    pub(crate) in_use: usize,
    /// The word that the header of each page in use holds.
    pub(crate) heap: *const (),
}

impl<A: AddressMap> Space<A> {
    pub(crate) fn pool(&self) -> PoolView {
        let pool = self.pool.lock();
        let mut abandoned = Vec::new();
        for (at, list) in pool.abandoned.iter().enumerate() {
            let (of, class) = if at < CLASSES { (0, at) } else { (SAMPLED, at - CLASSES) };
            // SAFETY: rule *owner*: the lock owns abandoned pages.
            unsafe { list.for_each(self, |page| abandoned.push((of, class as u8, page))) };
        }
        let holes = pool.used.gaps(self.high_water());
        PoolView { holes, abandoned, in_use: pool.in_use(), heap: pool.heap.0 }
    }
}

/// Proof that the owners of a space's pages stand still, so that no thread changes the pages or
/// their free cells.
pub(crate) struct SpaceView<'w, A: AddressMap>(&'w Space<A>);

impl<A: AddressMap> Clone for SpaceView<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: AddressMap> Copy for SpaceView<'_, A> {}

impl<A: AddressMap> Deref for SpaceView<'_, A> {
    type Target = Space<A>;

    fn deref(&self) -> &Space<A> {
        self.0
    }
}

impl<'w, A: AddressMap> SpaceView<'w, A> {
    /// The proof for `space`.
    ///
    /// # Safety
    ///
    /// The world is stopped for the lifetime, and nothing allocates or frees cells.
    pub(crate) const unsafe fn new(space: &'w Space<A>) -> Self {
        Self(space)
    }

    /// A page's free bits, and the number of free cells that the page counts.
    pub(crate) fn free_cells(self, page: u32) -> (FreeBits, u32) {
        let info = self.page(page as usize);
        // SAFETY: rule *owner*: the owner stands still. The page was handed out: `page` has looked.
        unsafe { (self.free_bits(page, |bits| *bits), info.owned(|owned| owned.free)) }
    }

    /// The cells on a page's remote stack, by granules of the page.
    pub(crate) fn remote_cells(self, page: u32) -> Vec<usize> {
        let mut slot = self.page(page as usize).remote.load(Ordering::Acquire) as usize;
        let mut cells = Vec::new();
        while slot != 0 && cells.len() <= PAGE_GRANULES {
            self.check_link(page, slot);
            cells.push(slot);
            // SAFETY: rules *mapped* and *owner*: a cell of the page starts there. It is free, so
            // its first word is the link, and no thread writes it.
            let link = unsafe { self.page_start(page).add(slot * GRANULE).cast::<u32>().read() };
            slot = link as usize;
        }
        cells
    }

    /// The heap word in the header of a page. `None`: the page has no header, or its memory is
    /// returned.
    pub(crate) fn heap_word(self, page: u32) -> Option<*const ()> {
        let kind = self.page(page as usize).shape().kind();
        // SAFETY: rule *owner*: the owner stands still.
        let returned = unsafe { self.info(page).owned(|owned| owned.returned) };
        let is_away = kind == PageKind::Small && returned & HEADER_PIECE != 0;
        matches!(kind, PageKind::Small | PageKind::Large)
            // SAFETY: rule *mapped*: the page is in use, so it starts with the word.
            .then(|| unsafe { self.page_start(page).cast::<*const ()>().read() })
            .filter(|word| !(is_away && word.is_null()))
    }

    /// Checks that a free cell has its poison, if the space has a quarantine. `is_linked` excludes
    /// the first bytes, because they are a link on a remote stack. The error says where the cell
    /// was written.
    ///
    /// Panics if no free cell starts at the granule.
    pub(crate) fn check_poison(self, granule: usize, is_linked: bool) -> Result<(), String> {
        let Some(quarantine) = self.quarantine() else { return Ok(()) };
        assert!(self.starts_at(self.address(granule)));
        assert_eq!(self.states()[granule].load(Ordering::Relaxed), 0, "the cell is free");
        let from = if is_linked { size_of::<u32>() } else { 0 };
        // SAFETY: rules *mapped* and *owner*: a cell starts at the granule, so its page was handed
        // out. It is free, so no thread writes it.
        unsafe { quarantine.check(self.memory(self.cell(granule)), from) }
    }
}
