//! The package's memory allocator. glibc's allocator keeps large freed allocations, separately for
//! each thread. This package runs for days in processes that need the memory themselves, so it maps
//! large allocations from the system and unmaps them as soon as they are freed.
#![allow(
    unsafe_code,
    reason = "an allocator is unsafe code by its nature; the reason stands at each block"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// Minimum number of bytes of an allocation that is mapped from the system.
const LONG: usize = 1 << 20;

/// The system aligns memory to pages of at least this many bytes.
const PAGE: usize = 4096;

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn is_long(layout: Layout) -> bool {
    layout.size() >= LONG && layout.align() <= PAGE
}

/// Maps zeroed memory. Returns null if there is no room.
fn long(bytes: usize) -> *mut u8 {
    // SAFETY: A mapping at an address that the system chooses overlaps nothing.
    let mapped = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    mapped.map_or(ptr::null_mut(), <*mut _>::cast)
}

// SAFETY: Only the layout decides whether an allocation is mapped, and callers pass the same layout
// when they free it, so each allocation returns to where it came from. A mapping has all of its
// bytes, is aligned to a page, and is not shared with any other allocation.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_long(layout) {
            return long(layout.size());
        }
        // SAFETY: The caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_long(layout) {
            return long(layout.size());
        }
        // SAFETY: The caller's promise is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if is_long(layout) {
            // SAFETY: The caller says that the piece has this length, and does not use it any more.
            let freed = unsafe { munmap(piece.cast(), layout.size()) };
            debug_assert!(freed.is_ok(), "a mapping of ours can be given back");
            return;
        }
        // SAFETY: The caller's promise is the same.
        unsafe { System.dealloc(piece, layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: The caller promises that the new length does not overflow when it is rounded up
        // to the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        match (is_long(layout), is_long(new)) {
            // SAFETY: The caller's promise is the same.
            (false, false) => unsafe { System.realloc(piece, layout, bytes) },
            (true, true) => {
                // SAFETY: The caller says that the piece has this length; the old address is not
                // used any more.
                let moved =
                    unsafe { mremap(piece.cast(), layout.size(), bytes, MremapFlags::MAYMOVE) };
                moved.map_or(ptr::null_mut(), <*mut _>::cast)
            }
            _ => {
                // SAFETY: Both pieces have at least as many bytes as are copied, and they do not
                // overlap.
                unsafe {
                    let other = self.alloc(new);
                    if !other.is_null() {
                        ptr::copy_nonoverlapping(piece, other, layout.size().min(bytes));
                        self.dealloc(piece, layout);
                    }
                    other
                }
            }
        }
    }
}
