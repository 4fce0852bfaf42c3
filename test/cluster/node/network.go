// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// Interface is the node's network device. The other end is on the machine.
const Interface = "eth0"

// setupNetwork assigns the node's addresses. The node also holds the service address, so that
// clients reach the API server at this address without a kube-proxy.
func setupNetwork(s Spec) error {
	own := []string{}
	if s.Services != "" {
		own = append(own, s.Services+"/32")
	}
	if err := assign("lo", own...); err != nil {
		return err
	}
	if err := assign(Interface, s.Address); err != nil {
		return err
	}
	for _, r := range s.Routes {
		if err := r.add(); err != nil {
			return err
		}
	}
	return nil
}

func (r Route) add() error {
	_, destination, err := net.ParseCIDR(r.Destination)
	if err != nil {
		return fmt.Errorf("parse the route to %q: %w", r.Destination, err)
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: destination, Gw: net.ParseIP(r.Gateway)}); err != nil {
		return fmt.Errorf("add a route to %s by %s: %w", r.Destination, r.Gateway, err)
	}
	return nil
}

// assign adds addresses to a device and sets it up.
func assign(device string, addresses ...string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find network device %s: %w", device, err)
	}
	for _, address := range addresses {
		if err := addAddress(link, address); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", device, err)
	}
	return nil
}

func addAddress(link netlink.Link, address string) error {
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("parse address %q: %w", address, err)
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("assign %s the address %s: %w", link.Attrs().Name, address, err)
	}
	return nil
}
