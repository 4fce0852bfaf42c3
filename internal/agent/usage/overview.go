// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/selfcheck"
	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Overview returns the node's data without the command lines of processes, which may contain
// secrets.
func (c *Collector) Overview(ctx context.Context) agentapi.Overview {
	o := c.overview(ctx, registry.Asker{Node: true})
	for i := range o.Processes {
		o.Processes[i].Command = ""
	}
	return o
}

// overview returns all data that the asker may see. If the driver does not answer, overview returns
// the allocations and the containers' accounts.
func (c *Collector) overview(ctx context.Context, who registry.Asker) agentapi.Overview {
	o := agentapi.Overview{
		Node: c.Node, Version: version.Version, At: time.Now().UTC(),
		GPUs: []agentapi.GPU{}, Processes: []agentapi.Process{},
	}
	found, err := c.look(ctx)
	if err != nil {
		o.Driver = err.Error()
		found = &look{holders: c.Containers.Holders()}
	} else if o.Processes, err = c.processes(ctx, who); err != nil {
		o.Driver, o.Processes = err.Error(), []agentapi.Process{}
	}
	o.Containers = c.containers(who, found)
	if who.Node {
		o.GPUs = c.gpus(found)
		c.addOthers(&o)
	} else if list, err := c.devices(ctx, who); err == nil {
		for _, d := range list {
			o.GPUs = append(o.GPUs, agentapi.GPU{Node: c.Node, Device: d})
		}
	}
	return o
}

// addOthers adds the node's pool, and the GPUs and containers of other device plugins.
func (c *Collector) addOthers(o *agentapi.Overview) {
	o.Pool = c.Pool
	for _, g := range c.GPUs.LeftOut() {
		o.LeftOut = append(o.LeftOut, g.UUID)
	}
	for _, g := range c.GPUs.GPUs() {
		if g.Foreign {
			o.OfferedTwice = append(o.OfferedTwice, g.UUID)
		}
	}
	if c.Foreign != nil {
		o.Foreign = c.Foreign()
	}
}

// gpus returns the node's GPUs with their free capacity.
func (c *Collector) gpus(found *look) []agentapi.GPU {
	rooms := map[string]placement.Room{}
	for _, r := range c.Ledger.Free() {
		rooms[r.UUID] = r
	}
	list := []agentapi.GPU{}
	for _, d := range c.nodeDevices(found) {
		g := agentapi.GPU{Node: c.Node, Device: d}
		if r, ok := rooms[d.UUID]; ok {
			g.Room = &agentapi.Room{
				MemoryBytes: r.MemoryBytes, FreeMemoryBytes: r.FreeMemoryBytes, FreeComputePPM: r.FreeComputePPM,
				FreeSlots: r.FreeSlots, Holders: r.Holders, Exclusive: r.Exclusive, MPS: r.MPS, FreeClients: r.FreeClients, Common: r.Common,
			}
		}
		list = append(list, g)
	}
	return list
}

// containers returns the containers with GPUs. If the asker is a pod, containers returns only the
// pod's containers.
func (c *Collector) containers(who registry.Asker, found *look) []agentapi.Container {
	byPlace := map[place][]sighting{}
	for uuid, sightings := range found.sightings {
		for _, s := range sightings {
			held := found.holders[s.Container]
			p := place{held.PodUID, held.Container, uuid}
			byPlace[p] = append(byPlace[p], s)
		}
	}
	list := []agentapi.Container{}
	for _, a := range c.Ledger.Allocations() {
		if (who.Node || a.PodUID == who.PodUID) && len(a.Devices) > 0 {
			list = append(list, c.container(a, found, byPlace))
		}
	}
	slices.SortFunc(list, func(a, b agentapi.Container) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	})
	return list
}

func (c *Collector) container(a placement.Allocation, found *look, byPlace map[place][]sighting) agentapi.Container {
	answer := agentapi.Container{Namespace: a.Namespace, Pod: a.Pod, PodUID: a.PodUID, Container: a.Container, Node: c.Node}
	if pod, ok := c.Pods.Cached(pods.Ref{UID: a.PodUID}); ok {
		answer.PodUID = string(pod.UID) // as the API server names it
		answer.Requests = request.Amounts(pod, a.Container, c.Config.Dialects)
	}
	inForce, accounts := c.limits(a), c.accounts(a)
	for i, d := range a.Devices {
		s := agentapi.Share{UUID: d.UUID, MemoryLimitBytes: d.Limit(), ComputeMaximumPPM: d.MaximumPPM}
		part := d.ComputePPM
		if k := slices.IndexFunc(inForce, func(l limits.Device) bool { return l.UUID == d.UUID }); k >= 0 {
			s.MemoryLimitBytes, part, s.ComputeMaximumPPM = inForce[k].MemoryBytes, inForce[k].ComputePPM, inForce[k].MaximumPPM
		}
		if part < request.Whole {
			s.ComputeLimitPPM = part
		}
		if g, ok := c.gpu(d.UUID); ok {
			s.Index, s.MIG, s.Unhealthy = g.Index, migOf(g), g.Reason
		}
		if _, answered := found.sightings[d.UUID]; answered {
			own := byPlace[place{a.PodUID, a.Container, d.UUID}]
			s.MemoryUsedBytes, s.Utilisation = sums(own)
			s.Processes = len(own)
		}
		if i < len(accounts) {
			s.Account = account(accounts[i])
		}
		s.Meter = c.meter(selfcheck.Place{PodUID: a.PodUID, Container: a.Container, UUID: d.UUID})
		answer.GPUs = append(answer.GPUs, s)
	}
	return answer
}

// meter returns the comparison of metered GPU time with the driver's samples, or nil without a
// comparison.
func (c *Collector) meter(p selfcheck.Place) *agentapi.Meter {
	if c.Meter == nil {
		return nil
	}
	v, ok := c.Meter(p)
	if !ok {
		return nil
	}
	answer := &agentapi.Meter{
		Seconds: v.Elapsed.Seconds(), Samples: v.Samples, Observed: v.Observed, Metered: v.Metered,
		Disagreement: v.Disagreement, Disagrees: v.Disagrees(),
	}
	answer.Ratio, answer.Low, answer.High, _ = v.Ratio()
	return answer
}

// accounts returns a container's own account by GPU, or nil if the container has no account.
func (c *Collector) accounts(a placement.Allocation) []limits.DeviceUsage {
	dir, err := c.Dir(a.PodUID, a.Container)
	if err != nil {
		return nil
	}
	usage, err := limits.ReadUsage(filepath.Join(dir, limits.UsageFile))
	if err != nil || len(usage.Devices) != len(a.Devices) {
		return nil
	}
	return usage.Devices
}

func account(u limits.DeviceUsage) *agentapi.Account {
	answer := &agentapi.Account{
		MemoryBytes: u.UsedBytes, BusySeconds: u.GPUTime.Seconds(), ThrottledSeconds: u.Wait.Seconds(),
		Launches: u.Launches, Refusals: u.Refusals,
	}
	if u.LastRefusal.Way != limits.WayNone {
		answer.RefusedWay, answer.RefusedBytes = u.LastRefusal.Way.String(), u.LastRefusal.Bytes
	}
	return answer
}
