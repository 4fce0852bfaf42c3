// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
)

const shipped = "../../config.toml"

func TestShippedFileIsTheDefault(t *testing.T) {
	got, err := Load(shipped)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), got); diff != "" {
		t.Errorf("config.toml differs from Default() (-default +file):\n%s", diff)
	}
}

func TestShippedFileNamesEveryKey(t *testing.T) {
	data, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	meta, err := toml.Decode(string(data), &tree)
	if err != nil {
		t.Fatal(err)
	}
	present := make(map[string]bool)
	for _, key := range meta.Keys() {
		present[key.String()] = true
	}
	for _, key := range leaves("", reflect.TypeFor[Config]()) {
		if !present[key] {
			t.Errorf("config.toml does not mention %s", key)
		}
	}
}

// leaves returns the keys of a structure that hold values.
func leaves(path string, typ reflect.Type) []string {
	if typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[Duration]() {
		return []string{path}
	}
	var keys []string
	for i := range typ.NumField() {
		field := typ.Field(i)
		keys = append(keys, leaves(join(path, field.Tag.Get("toml")), field.Type)...)
	}
	return keys
}

func TestParse(t *testing.T) {
	tests := []struct {
		name string
		in   string
		want func(*Config)
	}{
		{"nothing is the default", "", func(*Config) {}},
		{"one key", "[placement]\npolicy = \"spread\"", func(c *Config) { c.Placement.Policy = PlaceSpread }},
		{"sums for any scheduler", "[scheduling]\nmode = \"sums\"", func(c *Config) { c.Scheduling.Mode = ScheduleBySums }},
		{"our own scheduler", "[scheduling]\nmode = \"scheduler\"", func(c *Config) { c.Scheduling.Mode = ScheduleByPlugin }},
		{"another policy", "[compute]\npolicy = \"share\"", func(c *Config) { c.Compute.Policy = ComputeShare }},
		{"a list replaces the default", "[node]\nexempt_namespaces = []",
			func(c *Config) { c.Node.ExemptNamespaces = []string{} }},
		{"a table array replaces the default",
			"[[dialects.metagpu.device_sharing]]\nresource_name = \"a.b/half\"\nshares_per_gpu = 2\nuuids = [\"GPU-1\"]",
			func(c *Config) {
				c.Dialects.MetaGPU.DeviceSharing = []DeviceSharing{{"a.b/half", 2, false, []string{"GPU-1"}}}
			}},
		{"an entry has defaults of its own",
			"[[dialects.metagpu.device_sharing]]\nresource_name = \"a.b/c\"",
			func(c *Config) {
				c.Dialects.MetaGPU.DeviceSharing = []DeviceSharing{{"a.b/c", 100, false, []string{"*"}}}
			}},
		{"shared anew, the number does not count",
			"[[dialects.metagpu.device_sharing]]\nresource_name = \"a.b/c\"\nshares_per_gpu = 0\nauto_reshare = true",
			func(c *Config) {
				c.Dialects.MetaGPU.DeviceSharing = []DeviceSharing{{"a.b/c", 0, true, []string{"*"}}}
			}},
		{"no eviction", "placement.evict_after = 0", func(c *Config) { c.Placement.EvictAfter = 0 }},
		{"no XID is ignored", "health.ignored_xids = []", func(c *Config) { c.Health.IgnoredXIDs = []int{} }},
		{"inline tables", "[dialects]\nmetagpu.device_sharing = [{ resource_name = \"a.b/c\" }]",
			func(c *Config) {
				c.Dialects.MetaGPU.DeviceSharing = []DeviceSharing{{"a.b/c", 100, false, []string{"*"}}}
			}},
		{"durations", "nri.pod_wait = \"200ms\"", func(c *Config) { c.NRI.PodWait.Duration = 2e8 }},
		{"a disabled dialect frees its name",
			"[dialects.native]\nnumber = \"volcano.sh/vgpu-number\"\n[dialects.volcano]\nenabled = false",
			func(c *Config) {
				c.Dialects.Native.Number = "volcano.sh/vgpu-number"
				c.Dialects.Volcano.Enabled = false
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			want := Default()
			tt.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name string
		in   string
		want []string // one per problem
	}{
		{"not TOML", "[node]\n\nslots_per_gpu = ten\n", []string{"line 3: expected value but found \"ten\""}},
		{"unknown key", "\n[node]\nslots = 4", []string{
			"line 3: node.slots is unknown; allowed here: exempt_namespaces, foreign_resources, gpus, reserved_memory_mib, slots_per_gpu"}},
		{"unknown policy", "[compute]\npolicy = \"burst\"", []string{`line 2: compute.policy is "burst"; allowed: cap, share`}},
		{"unknown list of tables", "[log]\n[[pools]]\n[[pools]]\n", []string{"line 2: pools is unknown; allowed here: compute, detection, dialects, " +
			"driver, guard, health, http, injection, log, memory, metrics, node, nri, paths, placement, pool, resize, scheduling, sharing"}},
		{"unknown table", "[nodes]\n", []string{"line 1: nodes is unknown; allowed here: compute, detection, dialects, "}},
		{"wrong types", "[node]\nslots_per_gpu = \"4\"\nexempt_namespaces = \"a\"\nreserved_memory_mib = -1\n[http]\naddress = 9394",
			[]string{
				"line 2: node.slots_per_gpu is a string; allowed: a whole number",
				"line 3: node.exempt_namespaces is a string; allowed: a list",
				"line 4: node.reserved_memory_mib is -1; allowed: 0 or more",
				"line 6: http.address is a whole number; allowed: a string",
			}},
		{"a value for a table", "node = 3", []string{"line 1: node is a whole number; allowed: a table"}},
		{"a fraction", "[node]\nslots_per_gpu = 1.5", []string{
			"line 2: node.slots_per_gpu is a number with a fraction; allowed: a whole number"}},
		{"a number for a switch", "[dialects.aws]\nenabled = 1", []string{
			"line 2: dialects.aws.enabled is a whole number; allowed: true or false"}},
		{"out of range", "[node]\nslots_per_gpu = 0\n[dialects.aws]\nslots_per_gpu = 49", []string{
			"line 2: node.slots_per_gpu is 0; allowed: 1 to 1000",
			"line 4: dialects.aws.slots_per_gpu is 49; allowed: 1 to 48"}},
		{"no such choice", "injection.method = \"CDI\"\nlog.level = \"trace\"", []string{
			`line 1: injection.method is "CDI"; allowed: auto, cdi, env, direct`,
			`line 2: log.level is "trace"; allowed: debug, info, warn, error`}},
		{"fewer refusals than none", "[placement]\nevict_after = -1", []string{
			"line 2: placement.evict_after is -1; allowed: 0 (never) to 1000"}},
		{"contexts of no size", "[memory]\ncontext_mib = -1", []string{
			"line 2: memory.context_mib is -1; allowed: 0 (measured) to 16384"}},
		{"no such way to share", "[sharing]\nmethod = \"MPS\"\nmps_gpus = []", []string{
			`line 2: sharing.method is "MPS"; allowed: time, mps`,
			`line 3: sharing.mps_gpus is empty; allowed: ["*"], or a list of UUIDs`}},
		{"more clients than a GPU can serve", "[sharing.mps]\nclients_per_gpu = 49\nclients_per_container = 50\nshm_size_mib = 0", []string{
			"line 2: sharing.mps.clients_per_gpu is 49; allowed: 1 to 48",
			"line 3: sharing.mps.clients_per_container is 50; allowed: 1 to 49",
			"line 4: sharing.mps.shm_size_mib is 0; allowed: 1 to 1048576"}},
		{"no such scheduler", "[scheduling]\nmode = \"plugin\"", []string{`line 2: scheduling.mode is "plugin"; allowed: sums, fit, scheduler`}},
		{"no scheduler", "scheduling.mode = \"\"", []string{`line 1: scheduling.mode is ""; allowed: sums, fit, scheduler`}},
		{"no such taint", "health.taint = \"some\"", []string{`line 1: health.taint is "some"; allowed: off, any, all`}},
		{"an XID that cannot be", "[health]\nignored_xids = [13, 0]", []string{
			"line 2: health.ignored_xids[1] is 0; allowed: 1 to 9999"}},
		{"a look that comes too late", "[detection]\ninterval = \"10s\"\naction = \"ignore\"\nhost_action = \"kill\"", []string{
			`line 2: detection.interval is "10s"; allowed: 1s to 8s`,
			`line 3: detection.action is "ignore"; allowed: report, stop`,
			`line 4: detection.host_action is "kill"; allowed: ignore, report, stop`}},
		{"pod_wait as long as the runtime's", "[nri]\npod_wait = \"2s\"", []string{
			`line 2: nri.pod_wait is "2s"; allowed: more than 0 and less than 1.5s, as the runtime times out at 2s`}},
		{"pod_wait without a unit", "[nri]\npod_wait = 1", []string{
			`line 2: nri.pod_wait is a whole number; allowed: a duration such as "1s" or "200ms"`}},
		{"pod_wait of nonsense", "[nri]\npod_wait = \"soon\"", []string{
			`line 2: nri.pod_wait is "soon"; allowed: a duration such as "1s" or "200ms"`}},
		{"relative paths", "[paths]\nrun_dir = \"run\"\ninstall_dir = \"/opt/x/\"", []string{
			`line 2: paths.run_dir is "run"; allowed: an absolute path`,
			`line 3: paths.install_dir is "/opt/x/"; allowed: an absolute path`}},
		{"directories of others, which uninstalling would remove",
			"[paths]\nrun_dir = \"/run\"\nstate_dir = \"/var/lib\"\ninstall_dir = \"/usr/local\"", []string{
				`line 2: paths.run_dir is "/run", which other programs use; allowed: a directory for nri-vgpu alone`,
				`line 3: paths.state_dir is "/var/lib", which other programs use; allowed: a directory for nri-vgpu alone`,
				`line 4: paths.install_dir is "/usr/local", which other programs use; allowed: a directory for nri-vgpu alone`}},
		{"an element of a long list", "[injection.direct]\ndevices = [\n  \"/dev/a\",\n  \"/dev/nvidia{number}\",\n]", []string{
			`line 2: injection.direct.devices[1] is "/dev/nvidia{number}"; allowed placeholders: {minor}, {index}, {uuid}, {multiarch}`}},
		{"the second of two tables",
			"[[dialects.metagpu.device_sharing]]\nresource_name = \"a.b/c\"\n\n[[dialects.metagpu.device_sharing]]\nresource_name = \"a.b/d\"\nuuids = [\"*\", \"GPU-1\"]\ngpus = 1",
			[]string{
				`line 6: dialects.metagpu.device_sharing[1].uuids[0] is "*" beside UUIDs`,
				"line 7: dialects.metagpu.device_sharing[1].gpus is unknown; allowed here: auto_reshare, resource_name, shares_per_gpu, uuids",
			}},
		{"one name twice", "[dialects.alnair]\nmemory = \"k8s.amazonaws.com/vgpu\"", []string{
			`dialects.aws.slots is "k8s.amazonaws.com/vgpu", which dialects.alnair.memory also is; allowed: a different name`}},
		{"names that the API server refuses",
			"[dialects.native]\nnumber = \"gpus\"\nmemory = \"kubernetes.io/x\"\ncores = \"requests.a/b\"", []string{
				`line 2: dialects.native.number is "gpus"; allowed: domain/name`,
				`line 3: dialects.native.memory is "kubernetes.io/x"; allowed: domain/name`,
				`line 4: dialects.native.cores is "requests.a/b"; allowed: domain/name`,
			}},
		{"no such capability", "[injection]\ndriver_capabilities = [\"compute\", \"all\"]", []string{
			`line 2: injection.driver_capabilities[1] is "all"; allowed: compute, utility, graphics, display, video, ngx, compat32`}},
		{"no CUDA", "[injection]\ndriver_capabilities = [\"utility\"]", []string{
			`line 2: injection.driver_capabilities lacks "compute", which CUDA needs; allowed: compute, utility, graphics, display, video, ngx, compat32`}},
		{"a directory for specs that nobody reads", "[injection]\ncdi_output_dir = \"/srv\"", []string{
			`line 2: injection.cdi_output_dir is "/srv"; allowed: one of injection.cdi_spec_dirs, where the runtime looks: /etc/cdi, /var/run/cdi`}},
		{"nothing enabled",
			"[dialects]\nnative.enabled = false\nalnair.enabled = false\naws.enabled = false\nvolcano.enabled = false\nmetagpu.enabled = false",
			[]string{"dialects enables none; allowed: at least one of native, alnair, aws, volcano, hami, metagpu"}},
		{"a name for the plugin that isn't one", "[nri]\nplugin_index = \"5\"\nplugin_name = \"a b\"", []string{
			`line 2: nri.plugin_index is "5"; allowed: two digits`,
			`line 3: nri.plugin_name is "a b"; allowed: letters, digits`}},
		{"one name for two plugins", "[dialects.native]\nnumber = \"nvidia.com/gpu\"\nmemory = \"nvidia.com/mig-memory\"", []string{
			`line 2: dialects.native.number is "nvidia.com/gpu", which node.foreign_resources leaves to another device plugin; allowed: another name, or a node.foreign_resources without it`,
			`line 3: dialects.native.memory is "nvidia.com/mig-memory", which node.foreign_resources leaves`}},
		{"HAMi's dialect beside another plugin", "[dialects.hami]\nenabled = true", []string{
			`line 1: dialects.hami.number is "nvidia.com/gpu", which node.foreign_resources leaves to another device plugin; allowed: another name, or a node.foreign_resources without it`}},
		{"HAMi's numbers, too small", "[dialects.hami]\nnumber_per_gpu = 0\ndefault_number = 0\ndefault_cores = -1\nmemory_factor = 0", []string{
			"line 2: dialects.hami.number_per_gpu is 0; allowed: 1 to 1000",
			"line 3: dialects.hami.default_number is 0; allowed: 1 to 16",
			"line 4: dialects.hami.default_cores is -1; allowed: 0 (no limit) to 100",
			"line 5: dialects.hami.memory_factor is 0; allowed: 1 to 16384"}},
		{"HAMi's numbers, too large", "[dialects.hami]\ndefault_memory_mib = 16777217\ndefault_cores = 101", []string{
			"line 2: dialects.hami.default_memory_mib is 16777217; allowed: 0 (all memory) to 16777216",
			"line 3: dialects.hami.default_cores is 101; allowed: 0 (no limit) to 100"}},
		{"no name of a resource", "[node]\nforeign_resources = [\"gpu\", \"*\", \"a.b/c\"]", []string{
			`line 2: node.foreign_resources[0] is "gpu"; allowed: domain/name, which may end with "*"`,
			`line 2: node.foreign_resources[1] is "*"; allowed: domain/name`}},
		{"MPS on a MIG device", "[sharing]\nmps_gpus = [\"GPU-1\", \"MIG-2\"]", []string{
			`line 2: sharing.mps_gpus[1] is "MIG-2", a MIG device, which containers always share by time; allowed: UUIDs that begin with GPU-`}},
		{"no GPU", "[node.gpus]\ninclude = []\nexclude = [\"\"]", []string{
			`line 2: node.gpus.include is empty; allowed: ["*"] for every GPU`,
			`line 3: node.gpus.exclude[0] is ""; allowed: a UUID, an index such as "0", or a model`}},
		{"an address without a port", "[http]\naddress = \"localhost\"", []string{
			`line 2: http.address is "localhost"; allowed: host:port`}},
		{"one port for metrics and probes", "[http]\nprobe_address = \"127.0.0.1:9394\"", []string{
			`line 2: http.probe_address is "127.0.0.1:9394", whose port http.address (":9394") uses; allowed: another port`}},
		{"a directory with too long a path for sockets", "[paths]\nrun_dir = \"/" + strings.Repeat("x", 90) + "\"", []string{
			"line 2: paths.run_dir is 91 bytes long; allowed: at most 90, because a socket's path has at most 107"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.in))
			var bad *Error
			if !errors.As(err, &bad) {
				t.Fatalf("got error %v, want an *Error", err)
			}
			if len(bad.Problems) != len(tt.want) {
				t.Fatalf("got %d problems, want %d:\n%v", len(bad.Problems), len(tt.want), err)
			}
			for i, p := range bad.Problems {
				if !strings.Contains(p.String(), tt.want[i]) {
					t.Errorf("problem %d is\n  %s\nwant\n  %s", i, p, tt.want[i])
				}
			}
		})
	}
}

func TestByPlugin(t *testing.T) {
	for mode, want := range map[string]bool{ScheduleBySums: false, ScheduleByPlugin: true} {
		if got := (Scheduling{Mode: mode}).ByPlugin(); got != want {
			t.Errorf("mode %q: got %t", mode, got)
		}
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte("x = 1\ny = 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path)
	if err == nil || strings.Count(err.Error(), path+": line ") != 2 {
		t.Errorf("got %v, want two lines that begin with %q", err, path)
	}
	if _, err := Load(path + ".absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for an absent file, want os.ErrNotExist", err)
	}
}

// FuzzParse checks that no input makes Parse panic, and that every accepted
// configuration is valid.
func FuzzParse(f *testing.F) {
	data, err := os.ReadFile(shipped)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("[node]\nslots_per_gpu = [[1]]"))
	f.Add([]byte(twoPools))
	f.Add([]byte("dialects.metagpu.device_sharing = [{}, 3]"))
	f.Fuzz(func(t *testing.T, in []byte) {
		cfg, err := Parse(in)
		if err == nil && len(check(cfg, nil)) > 0 {
			t.Errorf("accepted what check refuses: %v", check(cfg, nil))
		}
	})
}
