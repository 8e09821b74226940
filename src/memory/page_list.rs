//! A list of pages, linked through the pages' entries in the side table.

use crate::memory::address_map::Map;
use crate::memory::table::PageTable;

/// "No page", in a link.
const NO_PAGE: u32 = u32::MAX;

/// A doubly linked list of pages. The links lie in `Owned`. The owner of the list owns its pages.
#[derive(Debug)]
pub(crate) struct PageList {
    head: u32,
    tail: u32,
    len: u32,
}

impl PageList {
    /// No pages.
    pub(crate) const EMPTY: Self = Self { head: NO_PAGE, tail: NO_PAGE, len: 0 };

    /// How many pages.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// The first page.
    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NO_PAGE).then_some(self.head)
    }

    /// Calls `f` with each page.
    ///
    /// # Safety
    ///
    /// The caller owns the list's pages, and `f` changes no list.
    pub(crate) unsafe fn for_each(&self, table: &PageTable<impl Map>, mut f: impl FnMut(u32)) {
        let mut next = self.front();
        for _ in 0..self.len {
            let Some(page) = next else { return };
            f(page);
            // SAFETY: rule *owner*: the caller owns the page.
            let link = unsafe { table.info(page).owned(|owned| owned.next) };
            next = (link != NO_PAGE).then_some(link);
        }
    }

    /// Puts a page in front.
    ///
    /// # Safety
    ///
    /// The caller owns `page`, which is on no list, and the list's pages.
    pub(crate) unsafe fn push_front(&mut self, table: &PageTable<impl Map>, page: u32) {
        // SAFETY: rule *owner*: the caller owns all pages involved.
        unsafe { self.link(table, NO_PAGE, page, self.head) }
    }

    /// Puts a page at the end.
    ///
    /// # Safety
    ///
    /// The caller owns `page`, which is on no list, and the list's pages.
    pub(crate) unsafe fn push_back(&mut self, table: &PageTable<impl Map>, page: u32) {
        // SAFETY: rule *owner*: the caller owns all pages involved.
        unsafe { self.link(table, self.tail, page, NO_PAGE) }
    }

    /// Takes the first page off.
    ///
    /// # Safety
    ///
    /// The caller owns the list's pages.
    pub(crate) unsafe fn pop_front(&mut self, table: &PageTable<impl Map>) -> Option<u32> {
        let page = self.front()?;
        // SAFETY: rule *owner*: it is on this list.
        unsafe { self.remove(table, page) };
        Some(page)
    }

    /// Takes one page off.
    ///
    /// # Safety
    ///
    /// The caller owns the list's pages, of which `page` is one.
    pub(crate) unsafe fn remove(&mut self, table: &PageTable<impl Map>, page: u32) {
        // SAFETY: rule *owner*: the caller owns the page and its neighbours; each closure touches
        // one entry.
        unsafe {
            let (prev, next) = table.info(page).owned(|owned| (owned.prev, owned.next));
            self.set_next(table, prev, next);
            self.set_prev(table, next, prev);
        }
        self.len -= 1;
    }

    /// Inserts a page with free cells at the front, and a page without at the end.
    ///
    /// # Safety
    ///
    /// The caller owns `page`, which is on no list, and the list's pages.
    pub(super) unsafe fn file(&mut self, table: &PageTable<impl Map>, page: u32) {
        // SAFETY: rule *owner*: the caller owns all pages involved.
        unsafe {
            match table.info(page).owned(|owned| owned.free) {
                0 => self.push_back(table, page),
                _ => self.push_front(table, page),
            }
        }
    }

    /// # Safety
    ///
    /// The caller owns the list and all the pages. `prev` and `next` are neighbours on the list.
    unsafe fn link(&mut self, table: &PageTable<impl Map>, prev: u32, page: u32, next: u32) {
        // SAFETY: rule *owner*: the caller owns the pages; each closure touches one entry.
        unsafe {
            table.info(page).owned(|owned| (owned.prev, owned.next) = (prev, next));
            self.set_next(table, prev, page);
            self.set_prev(table, next, page);
        }
        self.len += 1;
    }

    /// # Safety
    ///
    /// The caller owns `page`. If it is `NO_PAGE`, the method sets the list's head.
    unsafe fn set_next(&mut self, table: &PageTable<impl Map>, page: u32, next: u32) {
        match page {
            NO_PAGE => self.head = next,
            // SAFETY: rule *owner*: the caller owns the page.
            page => unsafe { table.info(page).owned(|owned| owned.next = next) },
        }
    }

    /// # Safety
    ///
    /// The caller owns `page`. If it is `NO_PAGE`, the method sets the list's tail.
    unsafe fn set_prev(&mut self, table: &PageTable<impl Map>, page: u32, prev: u32) {
        match page {
            NO_PAGE => self.tail = prev,
            // SAFETY: rule *owner*: the caller owns the page.
            page => unsafe { table.info(page).owned(|owned| owned.prev = prev) },
        }
    }
}
