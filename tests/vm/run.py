#!/usr/bin/env python3
"""Boots a virtual machine with a kernel of Debian, and runs tests/vm/guest.sh in it on cards that are not veth.

Packages are downloaded by name with apt into target/vm and unpacked there; nothing is installed. QEMU emulates the
processor: its speed says nothing about the switch. Needs root, for a network namespace with a bridge.
"""
import argparse
import glob
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
VM = ROOT / "target" / "vm"
PACKAGES = ["qemu-system-x86", "seabios", "busybox-static", "kmod", "xz-utils"]
# Suites in which a kernel is looked for, and the pattern of its package.
KERNELS = {
    "6.1": ("bookworm", r"linux-image-6\.1\.0-\d+-amd64-unsigned"),
    "6.12": ("bookworm-backports", r"linux-image-6\.12\.\d+\+deb12-amd64-unsigned"),
}
MODULES = ["tun", "virtio_net", "virtio_pci", "igb", "veth", "bonding", "wireguard", "netkit", "bridge"]
# Programs of this machine that the guest has.
PROGRAMS = ["ip", "ethtool"]
# Cards of the guest: the last byte of the Ethernet address, the device, and its network. Two on one network are a link.
CARDS = [
    (1, "virtio-net-pci", "hub0"),
    (2, "virtio-net-pci", "hub0"),
    (3, "virtio-net-pci", "hub1"),
    (4, "virtio-net-pci", "hub1"),
    (5, "virtio-net-pci", "hub2"),
    (6, "virtio-net-pci", "hub2"),
    (7, "igb", "hub3"),
    (8, "virtio-net-pci", "hub3"),
    (9, "virtio-net-pci,mq=on,vectors=10", "tap0"),
    (10, "virtio-net-pci", "tap1"),
]
BOOT_SECONDS = 400


def apt(*words, **options):
    state = VM / "apt"
    for part in ["lists/partial", "archives/partial", "sources.d"]:
        (state / part).mkdir(parents=True, exist_ok=True)
    suites = ["bookworm", "bookworm-backports"]
    lines = [f"deb http://deb.debian.org/debian {suite} main\n" for suite in suites]
    (state / "sources.list").write_text("".join(lines))
    places = {
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": state / "sources.d",
        "Dir::State::lists": state / "lists",
        "Dir::Cache::archives": state / "archives",
    }
    flags = [word for name, place in places.items() for word in ("-o", f"{name}={place}")]
    return subprocess.run([words[0], *flags, *words[1:]], check=True, stdin=subprocess.DEVNULL, **options)


def fetch(kernel):
    """Downloads and unpacks the packages. Returns the release of the kernel."""
    suite, pattern = KERNELS[kernel]
    tools = VM / "tools"
    if not (tools / "usr/bin/qemu-system-x86_64").exists():
        apt("apt-get", "update", "-qq")
        # Packages that are installed here are not downloaded again: their files are copied from this machine.
        apt("apt-get", "install", "-y", "-qq", "--download-only", "--no-install-recommends",
            "-t", "bookworm-backports", *PACKAGES)
        for archive in glob.glob(f"{VM}/apt/archives/*.deb"):
            subprocess.run(["dpkg", "-x", archive, tools], check=True)
    root = VM / f"linux-{kernel}"
    if not list(root.glob("boot/vmlinuz-*")):
        names = apt("apt-cache", "pkgnames", "linux-image-", capture_output=True, text=True).stdout.split()
        found = [name for name in names if re.fullmatch(pattern, name)]
        if not found:
            sys.exit(f"no package {pattern} in {suite}")
        newest = max(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
        root.mkdir(parents=True, exist_ok=True)
        apt("apt-get", "download", newest, cwd=root)
        for archive in root.glob("*.deb"):
            subprocess.run(["dpkg", "-x", archive, root], check=True)
            archive.unlink()
        [release] = os.listdir(root / "lib/modules")
        subprocess.run(["depmod", "-b", root, release], check=True)
    [release] = os.listdir(root / "lib/modules")
    return release


def needed(program):
    """Libraries that a program is linked with."""
    text = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return re.findall(r"(/[^ ]+)", text)


def initramfs(kernel, release, binary):
    """Makes the first file system of the guest. Returns its file."""
    root = VM / f"guest-{kernel}"
    shutil.rmtree(root, ignore_errors=True)
    for part in ["bin", "sbin", "proc", "sys", "dev", "run", "tmp", "etc", "lib64", f"lib/modules/{release}"]:
        (root / part).mkdir(parents=True)
    busybox = next(place for place in [VM / "tools/bin/busybox", pathlib.Path("/bin/busybox")] if place.exists())
    shutil.copy(busybox, root / "bin/busybox")
    programs = [shutil.which(name) for name in PROGRAMS]
    if None in programs:
        sys.exit(f"{PROGRAMS} are not installed: make setup")
    subprocess.run(["objcopy", "--strip-all", binary, root / "sbin/palisade"], check=True)
    subprocess.run(["gcc", "-O2", "-static", "-o", root / "sbin/fetch", ROOT / "tests/vm/fetch.c"], check=True)
    for program in programs:
        shutil.copy(os.path.realpath(program), root / "sbin" / os.path.basename(program))
    for library in {library for program in [*programs, binary] for library in needed(program)}:
        place = root / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(library), place)
    modules = VM / f"linux-{kernel}"
    wanted = []
    for module in MODULES:
        shown = subprocess.run(["modprobe", "-d", modules, "-S", release, "--show-depends", module],
                               capture_output=True, text=True)
        for line in shown.stdout.splitlines():
            if line.startswith("insmod ") and line.split()[1] not in wanted:
                wanted.append(line.split()[1])
    (root / "modules").mkdir()
    for number, path in enumerate(wanted):
        place = root / "modules" / f"{number:03}-{os.path.basename(path)}"
        shutil.copy(path, place)
        if path.endswith(".xz"):
            subprocess.run(["xz", "-d", place], check=True)
    shutil.copy(ROOT / "tests/vm/guest.sh", root / "init")
    (root / "init").chmod(0o755)
    names = subprocess.run(["find", "."], cwd=root, check=True, capture_output=True).stdout
    archive = subprocess.run([VM / "tools/bin/busybox" if (VM / "tools/bin/busybox").exists() else "busybox",
                              "cpio", "-o", "-H", "newc"], cwd=root, input=names, check=True, capture_output=True)
    place = VM / f"guest-{kernel}.cpio.gz"
    place.write_bytes(gzip.compress(archive.stdout, 1))
    return place


def boot(kernel, release, image):
    """Boots the machine in a network namespace of its own. Returns its console."""
    tools = VM / "tools"
    libraries = f"{tools}/usr/lib/x86_64-linux-gnu:{tools}/lib/x86_64-linux-gnu"
    devices, networks = [], set()
    for number, (address, device, network) in enumerate(CARDS):
        if network.startswith("hub"):
            devices += ["-netdev", f"hubport,id=n{number},hubid={network[3:]}"]
        else:
            queues = ",queues=4" if "mq=on" in device else ""
            networks.add((network, bool(queues)))
            devices += ["-netdev", f"tap,id=n{number},ifname={network},script=no,downscript=no{queues}"]
        bus = ""
        if device == "igb":
            devices += ["-device", f"pcie-root-port,id=port{number},chassis={number}"]
            bus = f",bus=port{number}"
        devices += ["-device", f"{device},netdev=n{number},mac=52:54:00:00:00:{address:02x},romfile={bus}"]
    links = ["ip link add br0 type bridge", "ip link set br0 up"]
    for network, has_queues in sorted(networks):
        kind = " multi_queue" if has_queues else ""
        links += [f"ip tuntap add {network} mode tap vnet_hdr{kind}", f"ip link set {network} master br0 up"]
    command = [
        f"{tools}/usr/bin/qemu-system-x86_64", "-L", f"{tools}/usr/share/qemu", "-L", f"{tools}/usr/share/seabios",
        "-M", "q35,accel=tcg", "-cpu", "max", "-smp", "1", "-m", "1024",
        "-nographic", "-no-reboot", "-kernel", f"{VM}/linux-{kernel}/boot/vmlinuz-{release}", "-initrd", str(image),
        "-append", "console=ttyS0 quiet panic=-1", *devices,
    ]
    quoted = " ".join(f"'{word}'" for word in command)
    script = " && ".join(links) + f" && LD_LIBRARY_PATH={libraries} exec {quoted}"
    try:
        done = subprocess.run(["unshare", "-n", "sh", "-c", script], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=BOOT_SECONDS)
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"") + b"\nnot ok - the machine did not end in time\n"
    return output.decode(errors="replace").replace("\r", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=ROOT / "target/debug/palisade")
    parser.add_argument("kernels", nargs="*", default=list(KERNELS))
    options = parser.parse_args()
    failed = False
    for kernel in options.kernels:
        release = fetch(kernel)
        console = boot(kernel, release, initramfs(kernel, release, options.binary))
        (VM / f"console-{kernel}.log").write_text(console)
        results = re.findall(r"^(?:not )?ok - .*$", console, re.M)
        print(f"# Linux {release}: {VM}/console-{kernel}.log", *results, sep="\n", flush=True)
        is_whole = re.search(r"^end of the tests$", console, re.M) is not None
        if not is_whole:
            print("not ok - the machine did not come to the end of the tests")
        failed |= not is_whole or any(result.startswith("not ok") for result in results)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
