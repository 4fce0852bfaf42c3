package node

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Interface is the node's network device; its other end is on the machine.
const Interface = "eth0"

// setupNetwork gives the node its addresses. The service address is its own as
// well, so that the API server is reached there without a kube-proxy.
func setupNetwork(s Spec) error {
	if err := assign("lo", s.Services+"/32"); err != nil {
		return err
	}
	return assign(Interface, s.Address)
}

func assign(device, address string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("network device %s: %w", device, err)
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("give %s the address %s: %w", device, address, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", device, err)
	}
	return nil
}
