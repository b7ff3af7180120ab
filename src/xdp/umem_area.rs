//! The memory of a UMEM: an area cut into frames of equal size, and the bytes of each for whoever holds its token.

use std::num::NonZeroU32;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use xsk_rs::FrameDesc;
use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};

use super::error::{XdpError, io_source};
use super::frame::Frame;
use super::multi_buffer::FrameLinks;
use super::umem_owner::{self, Extent, OwnerSocket};
use crate::limits::{FRAME_BYTES, RING_SLOTS, XDP_HEADROOM_BYTES};
use crate::mem::{Pages, prefetch_address};

/// `struct xsk_tx_metadata` of `linux/if_xdp.h`, which stands before a packet that asks something of who sends it.
#[repr(C)]
struct TxMetadata {
    flags: u64,
    csum_start: u16,
    csum_offset: u16,
    launch_time: u64,
}

/// Bytes of the metadata before a packet.
pub(super) const TX_METADATA_BYTES: usize = size_of::<TxMetadata>();
/// Flag of the metadata: the checksum is to be computed.
const XDP_TXMD_FLAGS_CHECKSUM: u64 = 1 << 1;

const _: () = assert!(TX_METADATA_BYTES == 24 && TX_METADATA_BYTES <= XDP_HEADROOM_BYTES);

/// Frames of one huge page: `xsk-rs` unmaps by length, and a huge mapping's must be a multiple of its page.
const FRAMES_PER_HUGE_PAGE: usize = (2 << 20) / FRAME_BYTES;

static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// The area, and what keeps it mapped.
pub(super) struct UmemArea {
    /// Tells the tokens of one UMEM from those of another.
    id: u32,
    base: NonNull<u8>,
    frames: usize,
    links: FrameLinks,
    huge: bool,
    backing: Backing,
}

enum Backing {
    /// For memory ports; the kernel knows nothing of it.
    Memory { _pages: Pages },
    /// Registered with the kernel. The anchor is never used, only kept: the lock makes that shareable.
    Kernel {
        umem: xsk_rs::Umem,
        takes_multi_buffer: bool,
        leaves_checksums: bool,
        _owner: Mutex<Box<OwnerSocket>>,
    },
}

// SAFETY: the area belongs to the process, not to a thread. Its bytes are reached only by `bytes` and `bytes_mut`,
// with a token in hand that exists once.
unsafe impl Send for UmemArea {}
// SAFETY: as above: two threads that share the region touch different frames, for want of two tokens of one.
unsafe impl Sync for UmemArea {}

impl UmemArea {
    /// An area of memory with room for `frames`, on huge pages when there are any.
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

    /// An area registered with the kernel, and one descriptor of `xsk-rs` for each frame. With `want_huge`, in huge
    /// pages when the system has enough of them reserved, and then of a whole number of such pages.
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

    /// The area as the kernel knows it, if it does.
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

    /// Starts to load the beginning of the packet in a frame.
    #[inline]
    pub(super) fn prefetch(&self, frame: &Frame) {
        // A hint takes any address.
        prefetch_address(self.base.as_ptr().wrapping_add(frame.index() * FRAME_BYTES + frame.headroom()));
    }

    /// The packet in a frame. Panics on a frame of another UMEM.
    #[inline]
    pub(super) fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        self.check(frame);
        // SAFETY: the token is of this region, so its index is below `frames` and its packet within the frame; the
        // token is the only one of its frame and borrowed for as long as the bytes, so nobody writes them.
        unsafe { slice::from_raw_parts(self.start(frame).add(frame.headroom()), frame.head_len()) }
    }

    /// The packet in a frame, to be changed. Panics on a frame of another UMEM.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The exclusive borrow is that of the token.
    pub(super) fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.check(frame);
        // SAFETY: as in `bytes`; the token is borrowed exclusively, so nobody else reads or writes them.
        unsafe { slice::from_raw_parts_mut(self.start(frame).add(frame.headroom()), frame.head_len()) }
    }

    /// What a frame holds of the packet of a chain.
    ///
    /// # Safety
    /// The frame follows a head whose token the caller has, or has borrowed, for as long as the bytes.
    #[inline]
    pub(super) unsafe fn view<'a>(&'a self, frame: &Frame) -> &'a [u8] {
        self.check(frame);
        // SAFETY: as in `bytes`; the only token of the frame is that of the chain, which is the caller's.
        unsafe { slice::from_raw_parts(self.start(frame).add(frame.headroom()), frame.head_len()) }
    }

    /// Moves the packet to where the kernel takes it from: right behind the headroom. Does nothing where it lies there.
    #[inline]
    pub(super) fn settle(&self, frame: &mut Frame) {
        self.check(frame);
        if frame.headroom() == XDP_HEADROOM_BYTES {
            return;
        }
        let (from, len) = (frame.headroom(), frame.head_len());
        // SAFETY: both ranges are within the frame (a packet is never longer than what fits behind the headroom),
        // whose only token is borrowed exclusively; `copy` allows them to overlap.
        unsafe { ptr::copy(self.start(frame).add(from), self.start(frame).add(XDP_HEADROOM_BYTES), len) };
        frame.place(XDP_HEADROOM_BYTES, len);
    }

    /// Asks the kernel, in the metadata before a packet that has settled, to leave its checksum to the receiver or to the
    /// hardware: from `start` to the end, into the field `field` bytes from there.
    pub(super) fn write_checksum_request(&self, frame: &Frame, start: u16, field: u16) {
        self.check(frame);
        assert!(
            frame.headroom() == XDP_HEADROOM_BYTES,
            "metadata stands before where the kernel takes packets from"
        );
        let (flags, csum_start, csum_offset) = (XDP_TXMD_FLAGS_CHECKSUM, start, field);
        // SAFETY: the metadata ends where the packet begins, behind the beginning of the frame, whose only token is
        // the caller's to give to a ring.
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

    #[inline]
    fn start(&self, frame: &Frame) -> *mut u8 {
        // SAFETY: callers have checked that the token is of this region, which makes its index less than `frames`.
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
    // Proof for the three `expect`s: the sizes are constants, and limits.rs asserts that they are powers of two.
    let ring = QueueSize::new(RING_SLOTS as u32).expect("a power of two");
    UmemConfig::builder()
        .frame_size(FrameSize::new(FRAME_BYTES as u32).expect("at least XDP_UMEM_MIN_CHUNK_SIZE"))
        .fill_queue_size(ring)
        .comp_queue_size(ring)
        .build()
        .expect("a power of two, larger than its headroom")
}

/// Where the area begins. `xsk-rs` shows each frame's data segment but not the area.
fn base_of(umem: &xsk_rs::Umem, first: &mut FrameDesc) -> NonNull<u8> {
    let offset = first.addr();
    // SAFETY: the descriptor is of this UMEM, fresh, and in no ring.
    let mut data = unsafe { umem.data_mut(first) };
    let mut cursor = data.cursor();
    cursor.set_pos(1);
    let address = data.contents_mut().as_mut_ptr().expose_provenance() - offset;
    data.cursor().set_pos(0);
    // The area was mapped by C's mmap and given to the kernel by address: its provenance is exposed.
    NonNull::new(ptr::with_exposed_provenance_mut(address)).expect("a mapping is not at address zero")
}
