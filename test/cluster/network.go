// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/node"
)

// linkRange is the range of clusters' addresses. RFC 2544 reserves the range for tests, so no
// network of a machine uses the range. A link takes linkSize addresses: network, machine, node,
// broadcast.
var linkRange = netip.MustParsePrefix("198.18.0.0/15")

const (
	linkBits = 30
	linkSize = 4
)

// These addresses are inside every cluster, and no other cluster sees them.
const (
	serviceRange   = "10.96.0.0/16"
	serviceAddress = "10.96.0.1"
	dnsAddress     = "10.96.0.10"
	// podRange is the range of pods. Each node of a cluster has a 256th of podRange, and the first
	// node has the first part.
	podRange = "10.244.0.0/16"
)

const (
	podBits = 24
	podSize = 256
)

// A link is the pair of devices between a node and the machine. A worker has a link to the first
// node of its cluster instead of the machine.
type link struct {
	// device is the name of the machine's end.
	device        string
	machine, node netip.Prefix
	// pods is the range of the node's pods.
	pods netip.Prefix
}

// chooseLink returns the first free range at or after a start that depends on the name. Therefore,
// a cluster tends to keep its address.
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
				pods:    podsOf(0),
			}, nil
		}
	}
	return link{}, fmt.Errorf("no address in %s is free", linkRange)
}

func podsOf(node int) netip.Prefix {
	first := netip.MustParsePrefix(podRange).Addr()
	return netip.PrefixFrom(nth(first, uint32(node)*podSize), podBits)
}

// choosePods returns the first range of pods that no other node of the cluster has.
func choosePods(taken []netip.Prefix) (netip.Prefix, error) {
	for n := range podSize {
		if pods := podsOf(n); n > 0 && free(pods, taken) {
			return pods, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no range of pods in %s is free", podRange)
}

// routes returns the routes from a worker and its pods to the first node, and to both addresses of
// the API server.
func (l link) routes(control string) []node.Route {
	gateway := l.machine.Addr().String()
	return []node.Route{
		{Destination: control + "/32", Gateway: gateway},
		{Destination: serviceAddress + "/32", Gateway: gateway},
	}
}

func free(candidate netip.Prefix, taken []netip.Prefix) bool {
	for _, t := range taken {
		// The default route overlaps with every range and does not count.
		if t.Bits() > 0 && t.Overlaps(candidate) {
			return false
		}
	}
	return true
}

// nth returns the n-th address after base.
func nth(base netip.Addr, n uint32) netip.Addr {
	b := base.As4()
	sum := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	sum += n
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// deviceName returns a name that fits the kernel's 15 characters for any name of a cluster.
func deviceName(name string) string {
	h := fnv.New32a()
	h.Write([]byte(name))
	return fmt.Sprintf("nrivgpu%08x", h.Sum32())
}

// networkOf returns the network of a process, or the machine's network if pid is 0.
func networkOf(pid int) (*netlink.Handle, error) {
	if pid == 0 {
		return netlink.NewHandle()
	}
	namespace, err := netns.GetFromPid(pid)
	if err != nil {
		return nil, fmt.Errorf("open the network of process %d: %w", pid, err)
	}
	defer namespace.Close()
	return netlink.NewHandleAt(namespace)
}

// takenRanges returns the ranges that the devices and routes of a network use.
func takenRanges(network *netlink.Handle) ([]netip.Prefix, error) {
	var taken []netip.Prefix
	addresses, err := network.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		taken = appendRange(taken, a.IPNet)
	}
	routes, err := network.RouteList(nil, netlink.FAMILY_V4)
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

// connect makes the pair of devices. The node's end is in the network namespace of the process.
func (l link) connect(network *netlink.Handle, pid int) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = l.device
	veth := &netlink.Veth{LinkAttrs: attributes, PeerName: node.Interface, PeerNamespace: netlink.NsPid(pid)}
	if err := network.LinkAdd(veth); err != nil {
		return fmt.Errorf("make the network device %s (the kernel needs veth: modprobe veth): %w", l.device, err)
	}
	address, err := netlink.ParseAddr(l.machine.String())
	if err != nil {
		return fmt.Errorf("parse the address of %s: %w", l.device, err)
	}
	if err := network.AddrAdd(veth, address); err != nil {
		return fmt.Errorf("assign %s the address %s: %w", l.device, l.machine, err)
	}
	if err := network.LinkSetUp(veth); err != nil {
		return fmt.Errorf("set %s up: %w", l.device, err)
	}
	return nil
}

// connectPods adds a route to a worker's pods.
func (l link) connectPods(network *netlink.Handle) error {
	_, pods, err := net.ParseCIDR(l.pods.String())
	if err != nil {
		return fmt.Errorf("parse the range of pods: %w", err)
	}
	if err := network.RouteAdd(&netlink.Route{Dst: pods, Gw: l.node.Addr().AsSlice()}); err != nil {
		return fmt.Errorf("add the route to the pods %s: %w", l.pods, err)
	}
	return nil
}

// disconnect removes the devices immediately. The kernel would remove the devices some time after
// the node's end.
func disconnect(device string) error {
	dev, err := netlink.LinkByName(device)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete network device %s: %w", device, err)
	}
	if err := netlink.LinkDel(dev); err != nil {
		// The device may have disappeared meanwhile.
		if _, again := netlink.LinkByName(device); errors.As(again, &notFound) {
			return nil
		}
		return fmt.Errorf("remove network device %s: %w", device, err)
	}
	return nil
}
