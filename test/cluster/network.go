package cluster

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/node"
)

// linkRange is where clusters take their addresses: RFC 2544 keeps it for
// tests, so that no network that a machine talks to uses it. A link takes
// linkSize of them: network, machine, node, broadcast.
var linkRange = netip.MustParsePrefix("198.18.0.0/15")

const (
	linkBits = 30
	linkSize = 4
)

// Addresses inside every cluster, which no other sees.
const (
	serviceRange   = "10.96.0.0/16"
	serviceAddress = "10.96.0.1"
	dnsAddress     = "10.96.0.10"
	podRange       = "10.244.0.0/24"
)

// A link is the pair of devices between the machine and a node.
type link struct {
	// device is the machine's end.
	device        string
	machine, node netip.Prefix
}

// chooseLink takes the first free range at or after one that the name decides,
// so that a cluster tends to keep its address.
func chooseLink(name string, taken []netip.Prefix) (link, error) {
	h := fnv.New32a()
	h.Write([]byte(name))
	count := uint32(1) << (linkBits - linkRange.Bits())
	for i := range count {
		base := nth(linkRange.Addr(), (h.Sum32()+i)%count*linkSize)
		if free(netip.PrefixFrom(base, linkBits), taken) {
			return link{
				device:  deviceName(name),
				machine: netip.PrefixFrom(nth(base, 1), linkBits),
				node:    netip.PrefixFrom(nth(base, 2), linkBits),
			}, nil
		}
	}
	return link{}, fmt.Errorf("no address in %s is free", linkRange)
}

func free(candidate netip.Prefix, taken []netip.Prefix) bool {
	for _, t := range taken {
		// The default route overlaps with everything and means nothing.
		if t.Bits() > 0 && t.Overlaps(candidate) {
			return false
		}
	}
	return true
}

// nth returns the address that many after base.
func nth(base netip.Addr, n uint32) netip.Addr {
	b := base.As4()
	sum := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	sum += n
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// deviceName fits the kernel's 15 characters whatever the cluster's name.
func deviceName(name string) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	return fmt.Sprintf("nrivgpu%08x", h.Sum32())
}

// takenRanges lists what the machine's devices and routes use.
func takenRanges() ([]netip.Prefix, error) {
	var taken []netip.Prefix
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		taken = appendRange(taken, a.IPNet)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		taken = appendRange(taken, r.Dst)
	}
	return taken, nil
}

func appendRange(ranges []netip.Prefix, n *net.IPNet) []netip.Prefix {
	if n == nil {
		return ranges
	}
	addr, ok := netip.AddrFromSlice(n.IP.To4())
	if !ok {
		return ranges
	}
	ones, _ := n.Mask.Size()
	return append(ranges, netip.PrefixFrom(addr, ones).Masked())
}

// connect makes the pair of devices, with the node's end in the network
// namespace of the process.
func (l link) connect(pid int) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = l.device
	veth := &netlink.Veth{LinkAttrs: attributes, PeerName: node.Interface, PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make the network device %s (the kernel needs veth: modprobe veth): %w", l.device, err)
	}
	address, err := netlink.ParseAddr(l.machine.String())
	if err != nil {
		return fmt.Errorf("address of %s: %w", l.device, err)
	}
	if err := netlink.AddrAdd(veth, address); err != nil {
		return fmt.Errorf("give %s the address %s: %w", l.device, l.machine, err)
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return fmt.Errorf("set %s up: %w", l.device, err)
	}
	return nil
}

// disconnect removes the devices at once; the kernel would do it some time
// after the node's end.
func disconnect(device string) error {
	dev, err := netlink.LinkByName(device)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("network device %s: %w", device, err)
	}
	if err := netlink.LinkDel(dev); err != nil {
		// It may have gone just now.
		if _, again := netlink.LinkByName(device); errors.As(again, &notFound) {
			return nil
		}
		return fmt.Errorf("remove network device %s: %w", device, err)
	}
	return nil
}
