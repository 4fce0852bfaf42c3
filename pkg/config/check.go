// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// AllGPUs stands for every GPU of the node in a list of UUIDs.
const AllGPUs = "*"

// These constants bound the values of keys. The errors and docs/reference/configuration-keys.md
// state the bounds.
const (
	maxReservedMiB = 1 << 24 // 16 TiB, beyond any GPU
	maxSlots       = 1000    // far beyond a useful number of time slices
	maxAWSSlots    = 48      // the MPS client limit, as in the AWS plugin
	maxOvercommit  = 1000    // eleven times the requested amount
	maxContext     = 16384   // MiB, far more than any context takes
	maxEvictAfter  = 1000    // some hours of refusals
	maxXID         = 9999    // far beyond NVIDIA's catalogue
	maxMPSClients  = 48      // the clients that a GPU serves since Volta
	maxSHMMiB      = 1 << 20 // 1 TiB
	maxShares      = 1000    // the smallest share is a thousandth of a GPU
	maxGPUs        = 16      // the most GPUs of a container
	maxFactor      = 1 << 14 // 16 GiB in a unit of memory
	// maxPodWait leaves half a second of the runtime's default time-out of 2 s for all
	// other work. After the time-out, the runtime starts the container unadjusted.
	maxPodWait = 1500 * time.Millisecond
	// minInterval bounds the load of queries on the driver. maxInterval ensures that the agent
	// detects unaccounted GPU processes within 10 s.
	minInterval = time.Second
	maxInterval = 8 * time.Second
	// maxSocketPath is the most bytes in the path of a Unix socket.
	maxSocketPath = 107
)

var (
	dnsLabel     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	resourceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	nodeLabel    = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?(=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?)?$`)
	cdiKind      = regexp.MustCompile(`^[A-Za-z][-A-Za-z0-9_.]*/[A-Za-z0-9][-A-Za-z0-9_.]*$`)
	pluginName   = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]*$`)
	// pluginIndex excludes 99, the index of the guard, so that the guard runs after the plugin.
	pluginIndex = regexp.MustCompile(`^([0-8][0-9]|9[0-8])$`)
	placeholder = regexp.MustCompile(`\{[^}]*\}?|\}`)
)

// checker collects the problems of values that have the right type. broken holds the keys with a
// reported problem: the values of these keys are defaults, and checker ignores them.
type checker struct {
	broken   map[string]bool
	problems []Problem
}

func check(cfg Config, broken map[string]bool) []Problem {
	c := checker{broken: broken}
	c.node(cfg.Node)
	c.optionalPath("driver.root", cfg.Driver.Root)
	c.optionalPath("driver.nvml_library", cfg.Driver.NVMLLibrary)
	c.injection(cfg.Injection)
	c.placement(cfg.Placement)
	c.scheduling(cfg.Scheduling)
	c.memory(cfg.Memory)
	c.oneOf("compute.policy", cfg.Compute.Policy, ComputeCap, ComputeShare)
	c.resize(cfg.Resize)
	c.howShared(cfg.Sharing)
	c.health(cfg.Health)
	c.dialects(cfg.Dialects)
	c.foreign(cfg.Node, enabledNames(cfg.Dialects))
	c.detection(cfg.Detection)
	c.nri(cfg.NRI)
	c.ownDirectory("paths.install_dir", cfg.Paths.InstallDir)
	c.ownDirectory("paths.run_dir", cfg.Paths.RunDir)
	c.sockets("paths.run_dir", cfg.Paths.RunDir)
	c.ownDirectory("paths.state_dir", cfg.Paths.StateDir)
	c.path("paths.pod_resources_dir", cfg.Paths.PodResourcesDir)
	c.optionalPath("guard.plugin_dir", cfg.Guard.PluginDir)
	c.address("http.address", cfg.HTTP.Address)
	c.address("http.probe_address", cfg.HTTP.ProbeAddress)
	if overlap(cfg.HTTP.Address, cfg.HTTP.ProbeAddress) {
		c.bad("http.probe_address", "is %q, whose port http.address (%q) uses; allowed: another port", cfg.HTTP.ProbeAddress, cfg.HTTP.Address)
	}
	for i, name := range cfg.Metrics.LegacyNames {
		c.oneOf(fmt.Sprintf("metrics.legacy_names[%d]", i), name, LegacyVolcano, LegacyMetaGPU)
	}
	c.oneOf("metrics.authentication", cfg.Metrics.Authentication, AuthenticateNobody, AuthenticateCluster)
	c.oneOf("log.level", cfg.Log.Level, "debug", "info", "warn", "error")
	c.oneOf("log.format", cfg.Log.Format, "text", "json")
	return c.problems
}

func (c *checker) bad(key, format string, args ...any) {
	if !c.broken[key] {
		c.problems = append(c.problems, Problem{Key: key, Message: fmt.Sprintf(format, args...)})
	}
}

func (c *checker) node(n Node) {
	if n.ReservedMemoryMiB > maxReservedMiB {
		c.bad("node.reserved_memory_mib", "is %d; allowed: 0 to %d", n.ReservedMemoryMiB, maxReservedMiB)
	}
	c.upTo("node.slots_per_gpu", n.SlotsPerGPU, maxSlots)
	for i, ns := range n.ExemptNamespaces {
		if !dnsLabel.MatchString(ns) {
			c.bad(element("node.exempt_namespaces", i), "is %q; allowed: the name of a namespace", ns)
		}
	}
	if len(n.GPUs.Include) == 0 {
		c.bad("node.gpus.include", `is empty; allowed: ["*"] for every GPU, or a list of UUIDs, indices and models`)
	}
	c.gpus("node.gpus.include", n.GPUs.Include)
	c.gpus("node.gpus.exclude", n.GPUs.Exclude)
}

func (c *checker) memory(m Memory) {
	if n := m.OvercommitPercent; n < 0 || n > maxOvercommit {
		c.bad("memory.overcommit_percent", "is %d; allowed: 0 (none) to %d", n, maxOvercommit)
	}
	if n := m.ContextMiB; n < 0 || n > maxContext {
		c.bad("memory.context_mib", "is %d; allowed: 0 (measured) to %d", n, maxContext)
	}
}

func (c *checker) resize(r Resize) {
	seen := map[string]bool{}
	for i, m := range r.Maximum {
		key := element("resize.maximum", i)
		switch {
		case m.Namespace != AllNamespaces && !dnsLabel.MatchString(m.Namespace):
			c.bad(key+".namespace", `is %q; allowed: the name of a namespace, or "*"`, m.Namespace)
		case seen[m.Namespace]:
			c.bad(key+".namespace", "is %q, which an earlier entry names; allowed: one entry for each namespace", m.Namespace)
		}
		seen[m.Namespace] = true
		if m.MemoryMiB > maxReservedMiB {
			c.bad(key+".memory_mib", "is %d; allowed: 0 (the request) to %d", m.MemoryMiB, maxReservedMiB)
		}
		if m.Cores < 0 || m.Cores > 100 {
			c.bad(key+".cores", "is %d; allowed: 0 (the request) to 100", m.Cores)
		}
	}
}

func (c *checker) injection(in Injection) {
	c.oneOf("injection.method", in.Method, InjectAuto, InjectCDI, InjectEnv, InjectDirect)
	if !cdiKind.MatchString(in.CDIKind) {
		c.bad("injection.cdi_kind", `is %q; allowed: vendor/class, such as "nvidia.com/gpu"`, in.CDIKind)
	}
	if len(in.CDISpecDirs) == 0 {
		c.bad("injection.cdi_spec_dirs", "is empty; allowed: one directory or more")
	}
	for i, dir := range in.CDISpecDirs {
		c.path(element("injection.cdi_spec_dirs", i), dir)
	}
	if !slices.Contains(in.CDISpecDirs, in.CDIOutputDir) {
		c.bad("injection.cdi_output_dir", "is %q; allowed: one of injection.cdi_spec_dirs, where the runtime looks: %s",
			in.CDIOutputDir, strings.Join(in.CDISpecDirs, ", "))
	}
	for i, capability := range in.DriverCapabilities {
		c.oneOf(element("injection.driver_capabilities", i), capability, Capabilities...)
	}
	if !slices.Contains(in.DriverCapabilities, CapabilityCompute) {
		c.bad("injection.driver_capabilities", "lacks %q, which CUDA needs; allowed: %s", CapabilityCompute, strings.Join(Capabilities, ", "))
	}
	for i, device := range in.Direct.Devices {
		c.template(element("injection.direct.devices", i), device)
	}
	for i, mount := range in.Direct.Mounts {
		key := element("injection.direct.mounts", i)
		c.template(key+".source", mount.Source)
		c.template(key+".destination", mount.Destination)
	}
}

func (c *checker) placement(p Placement) {
	c.oneOf("placement.policy", p.Policy, PlaceBinpack, PlaceSpread)
	if p.EvictAfter < 0 || p.EvictAfter > maxEvictAfter {
		c.bad("placement.evict_after", "is %d; allowed: 0 (never) to %d", p.EvictAfter, maxEvictAfter)
	}
}

func (c *checker) scheduling(s Scheduling) {
	c.oneOf("scheduling.mode", s.Mode, ScheduleBySums, ScheduleByFit, ScheduleByPlugin)
}

func (c *checker) howShared(s Sharing) {
	c.oneOf("sharing.method", s.Method, ShareByTime, ShareByMPS)
	if len(s.MPSGPUs) == 0 {
		c.bad("sharing.mps_gpus", `is empty; allowed: ["*"], or a list of UUIDs`)
	}
	for i, uuid := range s.MPSGPUs {
		if isMIG(uuid) {
			c.bad(element("sharing.mps_gpus", i), "is %q, a MIG device, which containers always share by time; allowed: UUIDs that begin with GPU-", uuid)
		}
	}
	m := s.MPS
	c.path("sharing.mps.root", m.Root)
	c.path("sharing.mps.control_program", m.ControlProgram)
	c.upTo("sharing.mps.clients_per_gpu", m.ClientsPerGPU, maxMPSClients)
	c.upTo("sharing.mps.clients_per_container", m.ClientsPerContainer, max(m.ClientsPerGPU, 1))
	if m.ReservedMemoryMiB > maxReservedMiB {
		c.bad("sharing.mps.reserved_memory_mib", "is %d; allowed: 0 to %d", m.ReservedMemoryMiB, maxReservedMiB)
	}
	c.oneOf("sharing.mps.compute_mode", m.ComputeMode, ModeKeep, ModeExclusiveProcess)
	if m.SHMSizeMiB < 1 || m.SHMSizeMiB > maxSHMMiB {
		c.bad("sharing.mps.shm_size_mib", "is %d; allowed: 1 to %d", m.SHMSizeMiB, maxSHMMiB)
	}
}

func (c *checker) health(h Health) {
	c.oneOf("health.taint", h.Taint, TaintOff, TaintAny, TaintAll)
	for i, xid := range h.IgnoredXIDs {
		c.upTo(element("health.ignored_xids", i), xid, maxXID)
	}
}

func (c *checker) detection(d Detection) {
	if d.Interval.Duration < minInterval || d.Interval.Duration > maxInterval {
		c.bad("detection.interval", "is %q; allowed: %s to %s", d.Interval, minInterval, maxInterval)
	}
	c.oneOf("detection.action", d.Action, DetectReport, DetectStop)
	c.oneOf("detection.host_action", d.HostAction, DetectIgnore, DetectReport, DetectStop)
}

func (c *checker) nri(n NRI) {
	c.path("nri.socket_path", n.SocketPath)
	if !pluginName.MatchString(n.PluginName) {
		c.bad("nri.plugin_name", "is %q; allowed: letters, digits, '-', '_' and '.'", n.PluginName)
	}
	if !pluginIndex.MatchString(n.PluginIndex) {
		c.bad("nri.plugin_index", `is %q; allowed: two digits, "00" to "98"`, n.PluginIndex)
	}
	if n.PodWait.Duration <= 0 || n.PodWait.Duration >= maxPodWait {
		c.bad("nri.pod_wait", "is %q; allowed: more than 0 and less than %s, as the runtime times out at 2s",
			n.PodWait, maxPodWait)
	}
}

// upTo requires a count from 1 to high.
func (c *checker) upTo(key string, n, high int) {
	if n < 1 || n > high {
		c.bad(key, "is %d; allowed: 1 to %d", n, high)
	}
}

func (c *checker) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		c.bad(key, "is %q; allowed: %s", value, strings.Join(allowed, ", "))
	}
}

func (c *checker) optionalPath(key, path string) {
	if path != "" {
		c.path(key, path)
	}
}

func (c *checker) path(key, path string) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		c.bad(key, "is %q; allowed: an absolute path without '..', '//' or a slash at its end", path)
	}
}

// shared lists directories that other programs also use.
var shared = strings.Fields(`
	/ /bin /boot /dev /etc /home /lib /lib64 /media /mnt /opt /proc /root /run /sbin /srv /sys /tmp /usr /var
	/opt/cni /opt/nri /opt/nri/plugins
	/run/containerd /run/crio /run/nri /run/systemd /run/user
	/usr/bin /usr/lib /usr/lib64 /usr/libexec /usr/local /usr/local/bin /usr/local/lib /usr/sbin /usr/share /usr/src
	/var/cache /var/lib /var/lib/containerd /var/lib/containers /var/lib/docker /var/lib/etcd /var/lib/kubelet
	/var/log /var/opt /var/run /var/run/nri /var/spool /var/tmp`)

// ownDirectory checks a directory that only nri-vgpu may use: uninstalling removes files in the
// directory.
func (c *checker) ownDirectory(key, path string) {
	c.path(key, path)
	if slices.Contains(shared, path) {
		c.bad(key, "is %q, which other programs use; allowed: a directory for nri-vgpu alone, because uninstalling removes files in it", path)
	}
}

// sockets checks that the paths of nri-vgpu's sockets in a directory are short enough.
func (c *checker) sockets(key, dir string) {
	longest := maxSocketPath - (len(paths.AgentSocket(dir)) - len(dir))
	if len(dir) > longest {
		c.bad(key, "is %d bytes long; allowed: at most %d, because a socket's path has at most %d", len(dir), longest, maxSocketPath)
	}
}

// placeholders are the placeholders of Direct.
var placeholders = []string{"{minor}", "{index}", "{uuid}", "{multiarch}"}

// template checks a path that may contain placeholders.
func (c *checker) template(key, path string) {
	c.path(key, path)
	for _, p := range placeholder.FindAllString(path, -1) {
		if !slices.Contains(placeholders, p) {
			c.bad(key, "is %q; allowed placeholders: %s", path, strings.Join(placeholders, ", "))
			return
		}
	}
}

func (c *checker) address(key, address string) {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		c.bad(key, `is %q; allowed: host:port or :port, such as ":9394"`, address)
	}
}

// overlap reports whether no host can listen at both addresses. At port 0, the kernel chooses the port.
func overlap(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	numberA, _ := strconv.ParseUint(portA, 10, 16)
	numberB, _ := strconv.ParseUint(portB, 10, 16)
	return errA == nil && errB == nil && numberA == numberB && numberA != 0 &&
		(hostA == hostB || everyHost(hostA) || everyHost(hostB))
}

func everyHost(host string) bool { return host == "" || net.ParseIP(host).IsUnspecified() }

func element(key string, i int) string { return fmt.Sprintf("%s[%d]", key, i) }
