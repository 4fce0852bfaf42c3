// SPDX-License-Identifier: Apache-2.0

package config

import "strings"

// named is a resource name and the key that sets it.
type named struct{ key, name string }

func (c *checker) dialects(d Dialects) {
	c.oneOf("dialects.native.memory_of_cores", d.Native.MemoryOfCores, MemoryProportional, MemoryAll)
	c.oneOf("dialects.native.amounts", d.Native.Amounts, AmountsPerGPU, AmountsTotal)
	c.upTo("dialects.aws.slots_per_gpu", d.AWS.SlotsPerGPU, maxAWSSlots)
	if l := d.AWS.NodeLabel; l != "" && !nodeLabel.MatchString(l) {
		c.bad("dialects.aws.node_label", `is %q; allowed: a label's key, or key=value, such as "k8s.amazonaws.com/accelerator=vgpu"`, l)
	}
	c.upTo("dialects.volcano.number_per_gpu", d.Volcano.NumberPerGPU, maxSlots)
	c.hami(d.HAMi)
	c.sharing(d.MetaGPU)
	enabled := enabledNames(d)
	if len(enabled) == 0 {
		c.bad("dialects", "enables none; allowed: at least one of native, alnair, aws, volcano, hami, metagpu")
	}
	c.resourceNames(enabled)
}

// resourceNames checks that every name is valid in a pod and occurs only once.
func (c *checker) resourceNames(all []named) {
	owner := make(map[string]string, len(all))
	for _, r := range all {
		if !validResourceName(r.name) {
			c.bad(r.key, `is %q; allowed: domain/name, such as "nri-vgpu.io/vgpu-memory", outside kubernetes.io`, r.name)
			continue
		}
		if first, taken := owner[r.name]; taken {
			c.bad(r.key, "is %q, which %s also is; allowed: a different name", r.name, first)
			continue
		}
		owner[r.name] = r.key
	}
}

// validResourceName reports whether the API server accepts name as an extended
// resource. The API server reserves the names of kubernetes.io and requests.*.
func validResourceName(name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	return resourceName.MatchString(name) &&
		len(domain) <= 244 && // with the prefix "requests." of quotas, 253
		!strings.Contains(domain, "..") &&
		domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") &&
		!strings.HasPrefix(domain, "requests.")
}

func enabledNames(d Dialects) []named {
	var all []named
	if d.Native.Enabled {
		all = append(all, named{"dialects.native.number", d.Native.Number},
			named{"dialects.native.memory", d.Native.Memory},
			named{"dialects.native.memory_percentage", d.Native.MemoryPercentage},
			named{"dialects.native.cores", d.Native.Cores})
	}
	if d.Alnair.Enabled {
		all = append(all, named{"dialects.alnair.memory", d.Alnair.Memory},
			named{"dialects.alnair.compute", d.Alnair.Compute})
	}
	if d.AWS.Enabled {
		all = append(all, named{"dialects.aws.slots", d.AWS.Slots})
	}
	if d.Volcano.Enabled {
		all = append(all, named{"dialects.volcano.number", d.Volcano.Number},
			named{"dialects.volcano.memory", d.Volcano.Memory},
			named{"dialects.volcano.memory_percentage", d.Volcano.MemoryPercentage},
			named{"dialects.volcano.cores", d.Volcano.Cores})
	}
	if d.HAMi.Enabled {
		all = append(all, named{"dialects.hami.number", d.HAMi.Number},
			named{"dialects.hami.memory", d.HAMi.Memory},
			named{"dialects.hami.memory_percentage", d.HAMi.MemoryPercentage},
			named{"dialects.hami.cores", d.HAMi.Cores},
			named{"dialects.hami.priority", d.HAMi.Priority})
	}
	if d.MetaGPU.Enabled {
		for i, s := range d.MetaGPU.DeviceSharing {
			all = append(all, named{element("dialects.metagpu.device_sharing", i) + ".resource_name", s.ResourceName})
		}
	}
	return all
}

func (c *checker) hami(h HAMi) {
	c.upTo("dialects.hami.number_per_gpu", h.NumberPerGPU, maxSlots)
	c.upTo("dialects.hami.default_number", h.DefaultNumber, maxGPUs)
	if h.DefaultMemoryMiB > maxReservedMiB {
		c.bad("dialects.hami.default_memory_mib", "is %d; allowed: 0 (all memory) to %d", h.DefaultMemoryMiB, maxReservedMiB)
	}
	if h.DefaultCores < 0 || h.DefaultCores > 100 {
		c.bad("dialects.hami.default_cores", "is %d; allowed: 0 (no limit) to 100", h.DefaultCores)
	}
	c.upTo("dialects.hami.memory_factor", h.MemoryFactor, maxFactor)
}

func (c *checker) sharing(m MetaGPU) {
	const list = "dialects.metagpu.device_sharing"
	if m.Enabled && len(m.DeviceSharing) == 0 {
		c.bad(list, "is empty; allowed: one entry or more, or dialects.metagpu.enabled = false")
	}
	for i, s := range m.DeviceSharing {
		key := element(list, i)
		if !s.AutoReshare {
			c.upTo(key+".shares_per_gpu", s.SharesPerGPU, maxShares)
		}
		c.uuids(key+".uuids", s.UUIDs)
	}
}

func (c *checker) uuids(key string, uuids []string) {
	if len(uuids) == 0 {
		c.bad(key, `is empty; allowed: ["*"] for every GPU, or UUIDs`)
	}
	seen := make(map[string]bool, len(uuids))
	for i, id := range uuids {
		switch {
		case id == AllGPUs && len(uuids) > 1:
			c.bad(element(key, i), `is "*" beside UUIDs; allowed: "*" alone, or UUIDs`)
		case id != AllGPUs && !isUUID(id):
			c.bad(element(key, i), `is %q; allowed: "*", or a UUID that begins with GPU- or MIG-`, id)
		case seen[id]:
			c.bad(element(key, i), "is %q for the second time; allowed: each UUID once", id)
		}
		seen[id] = true
	}
}
