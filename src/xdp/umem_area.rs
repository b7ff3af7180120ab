//! UMEM area: memory divided into frames of equal size, of which the token gives access to the bytes.

use std::num::NonZeroU32;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use xsk_rs::FrameDesc;
use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};

use super::error::{XdpError, io_source};
use super::frame::{Frame, PACKET_ROOM};
use super::frame_links::FrameLinks;
use super::tx_metadata::{TX_METADATA_BYTES, TxMetadata, XDP_TXMD_FLAGS_CHECKSUM};
use super::umem_owner::{self, Extent, OwnerSocket};
use crate::limits::{FRAME_BYTES, RING_SLOTS, XDP_HEADROOM_BYTES};
use crate::mem::{Pages, prefetch_address};
use crate::net::virtio_net::HEADER_BYTES;

/// Frames of one huge page. `xsk-rs` unmaps by length, and the length of a huge mapping must be a multiple of
/// its page.
const FRAMES_PER_HUGE_PAGE: usize = (2 << 20) / FRAME_BYTES;

static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// The area, and the owner of its mapping.
pub(super) struct UmemArea {
    /// Id of the UMEM in its tokens.
    id: u32,
    base: NonNull<u8>,
    frames: usize,
    links: FrameLinks,
    huge: bool,
    backing: Backing,
}

enum Backing {
    /// Memory for in-memory ports, unknown to the kernel.
    Memory { _pages: Pages },
    /// Memory registered with the kernel. The owner socket is kept and never used; the lock makes it
    /// shareable.
    Kernel {
        umem: xsk_rs::Umem,
        takes_multi_buffer: bool,
        leaves_checksums: bool,
        _owner: Mutex<Box<OwnerSocket>>,
    },
}

// SAFETY: the area belongs to the process, not to a thread. Access to its bytes takes a token, and each token
// exists once.
unsafe impl Send for UmemArea {}
// SAFETY: as above: two threads that share the area access different frames, since no frame has two tokens.
unsafe impl Sync for UmemArea {}

impl UmemArea {
    /// Maps memory for `frames` frames, in huge pages if there are any.
    pub(super) fn in_memory(frames: usize) -> std::io::Result<UmemArea> {
        let pages = Pages::new(frames.saturating_mul(FRAME_BYTES), true)?;
        Ok(UmemArea {
            id: next_id(),
            base: pages.base(),
            frames,
            links: FrameLinks::new(frames),
            huge: false,
            backing: Backing::Memory { _pages: pages },
        })
    }

    /// Registers memory with the kernel, and returns it with one descriptor of `xsk-rs` for each frame. With
    /// `want_huge` it is in a whole number of huge pages if the system has enough of them reserved.
    pub(super) fn registered(frames: usize, want_huge: bool) -> Result<(UmemArea, Vec<FrameDesc>), XdpError> {
        let rounded = frames.next_multiple_of(FRAMES_PER_HUGE_PAGE);
        let (huge, (umem, mut descriptors, owner)) = match want_huge.then(|| register(rounded, true)) {
            Some(Ok(registered)) => (true, registered),
            Some(Err(_)) | None => (false, register(frames, false)?),
        };
        let base = base_of(&umem, &mut descriptors[0]);
        let frames = descriptors.len();
        let (takes_multi_buffer, leaves_checksums) = (owner.takes_multi_buffer(), owner.leaves_checksums());
        let backing = Backing::Kernel {
            umem,
            takes_multi_buffer,
            leaves_checksums,
            _owner: Mutex::new(Box::new(owner)),
        };
        let links = FrameLinks::new(frames);
        Ok((UmemArea { id: next_id(), base, frames, links, huge, backing }, descriptors))
    }

    #[inline]
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    pub(super) fn links(&self) -> &FrameLinks {
        &self.links
    }

    pub(super) fn is_huge(&self) -> bool {
        self.huge
    }

    /// Registration with the kernel; `None` in memory.
    pub(super) fn kernel(&self) -> Option<&xsk_rs::Umem> {
        match &self.backing {
            Backing::Kernel { umem, .. } => Some(umem),
            Backing::Memory { .. } => None,
        }
    }

    pub(super) fn takes_multi_buffer(&self) -> bool {
        match self.backing {
            Backing::Kernel { takes_multi_buffer, .. } => takes_multi_buffer,
            Backing::Memory { .. } => true,
        }
    }

    #[inline]
    pub(super) fn leaves_checksums(&self) -> bool {
        matches!(self.backing, Backing::Kernel { leaves_checksums: true, .. })
    }

    /// Panics unless the frame is of this UMEM.
    #[inline]
    pub(super) fn check(&self, frame: &Frame) {
        assert!(frame.umem() == self.id, "a frame of UMEM {} is used with UMEM {}", frame.umem(), self.id);
    }

    /// Prefetches the beginning of the packet in a frame.
    #[inline]
    pub(super) fn prefetch(&self, frame: &Frame) {
        // A prefetch takes any address.
        prefetch_address(self.base.as_ptr().wrapping_add(frame.index() * FRAME_BYTES + frame.headroom()));
    }

    /// Returns the packet in a frame. Panics on a frame of another UMEM.
    #[inline]
    pub(super) fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        self.check(frame);
        // SAFETY: the token is of this area, so its index is below `frames` and its packet within the frame.
        // The token is the only one of its frame and borrowed for as long as the bytes, so no code writes
        // them.
        unsafe { slice::from_raw_parts(self.start(frame).add(frame.headroom()), frame.head_len()) }
    }

    /// Returns the packet in a frame, to be changed. Panics on a frame of another UMEM.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The exclusive borrow is that of the token.
    pub(super) fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.check(frame);
        // SAFETY: as in `bytes`; the token is borrowed exclusively, so no other code reads or writes the
        // bytes.
        unsafe { slice::from_raw_parts_mut(self.start(frame).add(frame.headroom()), frame.head_len()) }
    }

    /// Returns all bytes behind the headroom of a frame, for a packet to be read into. Panics on a frame of
    /// another UMEM.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The exclusive borrow is that of the token.
    pub(super) fn room<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        frame.place(XDP_HEADROOM_BYTES, PACKET_ROOM);
        self.bytes_mut(frame)
    }

    /// Returns a frame's part of a multi-buffer packet.
    ///
    /// # Safety
    /// The caller has or borrows the token of the packet's head for as long as the bytes.
    #[inline]
    pub(super) unsafe fn view<'a>(&'a self, frame: &Frame) -> &'a [u8] {
        self.check(frame);
        // SAFETY: as in `bytes`; the only token of the frame is that of the packet, which the caller has.
        unsafe { slice::from_raw_parts(self.start(frame).add(frame.headroom()), frame.head_len()) }
    }

    /// Moves the packet right behind the headroom, where the kernel transmits from, unless it is there.
    #[inline]
    pub(super) fn move_behind_headroom(&self, frame: &mut Frame) {
        self.check(frame);
        if frame.headroom() == XDP_HEADROOM_BYTES {
            return;
        }
        let (from, len) = (frame.headroom(), frame.head_len());
        // SAFETY: both ranges are within the frame, since a packet always fits behind the headroom. Its only
        // token is borrowed exclusively, and `copy` allows the ranges to overlap.
        unsafe { ptr::copy(self.start(frame).add(from), self.start(frame).add(XDP_HEADROOM_BYTES), len) };
        frame.place(XDP_HEADROOM_BYTES, len);
    }

    /// Writes a checksum request to the metadata in front of a packet behind the headroom. The kernel leaves
    /// the checksum, from `start` to the end into the field `field` bytes from there, to the receiver or to
    /// the hardware.
    pub(super) fn write_checksum_request(&self, frame: &Frame, start: u16, field: u16) {
        self.check(frame);
        assert!(
            frame.headroom() == XDP_HEADROOM_BYTES,
            "metadata stands before where the kernel takes packets from"
        );
        let (flags, csum_start, csum_offset) = (XDP_TXMD_FLAGS_CHECKSUM, start, field);
        // SAFETY: the metadata is within the frame: it ends at the packet, behind the headroom. The caller
        // has the only token of the frame.
        unsafe {
            let metadata = self.start(frame).add(XDP_HEADROOM_BYTES - TX_METADATA_BYTES);
            metadata.cast::<TxMetadata>().write_unaligned(TxMetadata {
                flags,
                csum_start,
                csum_offset,
                launch_time: 0,
            });
        }
    }

    /// Returns the first bytes of a frame, which hold the virtio-net header of its packet. Panics on a frame of
    /// another UMEM, and on a packet that begins within them.
    #[inline]
    pub(super) fn virtio_header<'a>(&'a self, frame: &'a Frame) -> &'a [u8; HEADER_BYTES] {
        self.check(frame);
        assert!(frame.headroom() >= HEADER_BYTES, "the packet has grown into its virtio-net header");
        // SAFETY: as in `bytes`: the bytes are within the frame, and in front of its packet.
        unsafe { &*self.start(frame).cast() }
    }

    /// Returns the same bytes, to be changed.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The exclusive borrow is that of the token.
    pub(super) fn virtio_header_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8; HEADER_BYTES] {
        self.check(frame);
        assert!(frame.headroom() >= HEADER_BYTES, "the packet has grown into its virtio-net header");
        // SAFETY: as in `bytes_mut`.
        unsafe { &mut *self.start(frame).cast() }
    }

    #[inline]
    fn start(&self, frame: &Frame) -> *mut u8 {
        // SAFETY: callers have checked that the token is of this area, so its index is less than `frames`.
        unsafe { self.base.as_ptr().add(frame.index() * FRAME_BYTES) }
    }
}

fn next_id() -> u32 {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    assert!(id != u32::MAX, "the ids of UMEMs are used up: tokens of two could no longer be told apart");
    id
}

type Registered = (xsk_rs::Umem, Vec<FrameDesc>, OwnerSocket);

fn register(frames: usize, huge: bool) -> Result<Registered, XdpError> {
    let action = "register packet memory (a UMEM) with the kernel";
    let bytes = frames.saturating_mul(FRAME_BYTES);
    let out_of_memory = || XdpError::Memory { action: action.into(), bytes };
    let count = u32::try_from(frames).ok().and_then(NonZeroU32::new).ok_or_else(out_of_memory)?;
    let config = umem_config();
    umem_owner::in_private_namespace(|| {
        let (umem, mut descriptors) = xsk_rs::Umem::new(config, count, huge).map_err(|error| {
            let error = io_source(&error);
            match error.raw_os_error() {
                Some(libc::ENOMEM | libc::ENOBUFS) => out_of_memory(),
                _ => XdpError::from_io(action, &error),
            }
        })?;
        let extent =
            Extent { base: base_of(&umem, &mut descriptors[0]), bytes: descriptors.len() * FRAME_BYTES };
        let owner = OwnerSocket::bind(&umem, &extent)?;
        Ok((umem, descriptors, owner))
    })
}

fn umem_config() -> UmemConfig {
    // The three `expect`s hold: the sizes are constants, and limits.rs asserts that they are powers of two.
    let ring = QueueSize::new(RING_SLOTS as u32).expect("a power of two");
    UmemConfig::builder()
        .frame_size(FrameSize::new(FRAME_BYTES as u32).expect("at least XDP_UMEM_MIN_CHUNK_SIZE"))
        .fill_queue_size(ring)
        .comp_queue_size(ring)
        .build()
        .expect("a power of two, larger than its headroom")
}

/// Returns the address of the area. `xsk-rs` exposes the data segment of each frame, but not the area.
fn base_of(umem: &xsk_rs::Umem, first: &mut FrameDesc) -> NonNull<u8> {
    let offset = first.addr();
    // SAFETY: the descriptor is of this UMEM, and in no ring yet.
    let mut data = unsafe { umem.data_mut(first) };
    let mut cursor = data.cursor();
    cursor.set_pos(1);
    let address = data.contents_mut().as_mut_ptr().expose_provenance() - offset;
    data.cursor().set_pos(0);
    // C's mmap has mapped the area, and the kernel has its address, so its provenance is exposed.
    NonNull::new(ptr::with_exposed_provenance_mut(address)).expect("a mapping is not at address zero")
}
