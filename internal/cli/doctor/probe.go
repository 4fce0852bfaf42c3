// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/nri-vgpu/nri-vgpu/internal/driverlib"
	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// patience is the time-out of each probe.
const patience = 3 * time.Second

// searched is the PATH on which the node's programs are searched.
const searched = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/bin"

// Enter changes the root directory of this process to a node's root directory,
// mounted at root, as in the agent's container. If root is "" or "/", Enter does
// nothing.
func Enter(root string) error {
	if root == "" || root == "/" {
		return nil
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("read the node's files in %s: %w", root, err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("read the node's files in %s: %w", root, err)
	}
	return os.Setenv("PATH", searched)
}

// Gather collects the facts about the local node. Pools override no path.
func Gather(ctx context.Context, file config.File) Facts {
	report, err := nodereport.Read(filepath.Join(file.Config.Paths.RunDir, nodereport.FileName))
	cfg := file.Named(report.Pool)
	f := Facts{Config: cfg, Now: time.Now(), Report: report, ReportErr: err}
	f.Runtime = seeRuntime(ctx, cfg)
	f.Guard = seeGuard(ctx, cfg)
	f.Agent = seeAgentMetrics(ctx, cfg)
	f.CDI, f.CDIErr = seeCDI(cfg.Injection.CDISpecDirs)
	f.DriverVersion = seeDriver("/proc/driver/nvidia/version")
	f.Names, f.NamesErr = driverlib.Read(paths.DriverNames(cfg.Paths.RunDir))
	_, f.KubeletErr = get(ctx, "http://127.0.0.1:10248/healthz")
	f.RunDirInMemory = inMemory(cfg.Paths.RunDir)
	f.MPS = seeMPS(cfg)
	f.Contexts = seeContexts(cfg.Paths.StateDir)
	_, f.StateErr = guardfile.ReadAsking(cfg.Paths.StateDir)
	return f
}

// versioned matches the version in the output of a runtime's --version.
var versioned = regexp.MustCompile(`v?\d+\.\d+\.\d+\S*`)

func seeRuntime(ctx context.Context, cfg config.Config) Runtime {
	var rt Runtime
	for name, program := range map[string]string{"containerd": "containerd", "cri-o": "crio"} {
		if out, err := output(ctx, program, "--version"); err == nil {
			rt.Name, rt.Version = name, versioned.FindString(string(out))
		}
	}
	rt.SocketErr = listening(ctx, cfg.NRI.SocketPath)
	if rt.Name != "containerd" {
		rt.SettingsErr = errors.New("doctor reads the settings of containerd only")
		return rt
	}
	dump, err := output(ctx, "containerd", "config", "dump")
	if err != nil {
		rt.SettingsErr = err
		return rt
	}
	rt.Settings, rt.SettingsErr = parseContainerd(dump)
	return rt
}

func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

func listening(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

func seeGuard(ctx context.Context, cfg config.Config) Guard {
	var g Guard
	if cfg.Guard.PluginDir != "" {
		if out, err := output(ctx, filepath.Join(cfg.Guard.PluginDir, paths.GuardProgram), "--version"); err == nil {
			g.Installed = string(bytes.TrimSpace(out))
		}
	}
	status, loaded, err := guardfile.Loaded(cfg.Paths.RunDir)
	g.Err = err
	if loaded {
		g.Loaded = &status
	}
	return g
}

func seeAgentMetrics(ctx context.Context, cfg config.Config) Agent {
	_, port, err := net.SplitHostPort(cfg.HTTP.Address)
	if err != nil {
		return Agent{Err: err}
	}
	// A configured HTTP proxy cannot reach the node's loopback address.
	way := &http.Transport{DisableKeepAlives: true}
	if cfg.Metrics.Authentication != config.AuthenticateNobody {
		way.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", paths.MetricsSocket(cfg.Paths.RunDir))
		}
	}
	body, err := getBy(ctx, way, "http://"+net.JoinHostPort("127.0.0.1", port)+"/metrics")
	if err != nil {
		return Agent{Err: err}
	}
	return parseAgent(body)
}

// parseAgent parses the agent's metrics.
func parseAgent(body []byte) Agent {
	values := map[string]float64{}
	var meters []Meter
	for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if number, err := strconv.ParseFloat(value, 64); err == nil {
			values[name] = number
			if m, ok := parseMeter(name, number); ok {
				meters = append(meters, m)
			}
		}
	}
	return Agent{
		Registered: values["nri_vgpu_registered"] == 1,
		Synced:     values["nri_vgpu_pods_synced"] == 1,
		Unadjusted: int(values["nri_vgpu_unadjusted_containers"]),
		Displaced:  int(values["nri_vgpu_displaced_containers"]),
		MPSReady:   values["nri_vgpu_mps_ready"] == 1,
		Meters:     meters,
	}
}

func get(ctx context.Context, url string) ([]byte, error) {
	return getBy(ctx, &http.Transport{DisableKeepAlives: true}, url)
}

func getBy(ctx context.Context, way *http.Transport, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := (&http.Client{Transport: way}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, 16<<20))
}

func seeCDI(dirs []string) ([]string, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	var errs []error
	for path, problems := range cache.GetErrors() {
		errs = append(errs, fmt.Errorf("%s: %w", path, errors.Join(problems...)))
	}
	devices := cache.ListDevices()
	slices.Sort(devices)
	return devices, errors.Join(errs...)
}

func seeDriver(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}

func seeMPS(cfg config.Config) MPS {
	var m MPS
	_, m.ProgramErr = os.Stat(filepath.Join(cfg.Sharing.MPS.Root, cfg.Sharing.MPS.ControlProgram))
	var record struct{ PID int }
	data, err := os.ReadFile(filepath.Join(paths.MPS(cfg.Paths.RunDir), paths.MPSRecord))
	if err == nil && json.Unmarshal(data, &record) == nil {
		m.PID = record.PID
	}
	m.Alive = m.PID > 0 && !errors.Is(unix.Kill(m.PID, 0), unix.ESRCH)
	return m
}

func inMemory(dir string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil && (stat.Type == unix.TMPFS_MAGIC || stat.Type == unix.RAMFS_MAGIC)
}
