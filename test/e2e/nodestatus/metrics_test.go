// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/doctor"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// program is the built agent or patcher, with metrics.authentication, beside the API server.
type program struct {
	t           *testing.T
	config      config.Config
	url, probes string
}

// startProgram starts a program with the rights of its service account, until the test ends.
func startProgram(t *testing.T, name string) *program {
	t.Helper()
	dir, err := os.MkdirTemp("", "metrics") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	address, probes := fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	text := fmt.Sprintf(`metrics.authentication = "kubernetes"
http = {address = %q, probe_address = %q}
driver.root = "%s"
injection = {cdi_spec_dirs = ["%[3]s"], cdi_output_dir = "%[3]s"}
nri.socket_path = "%[3]s/nri.sock"
paths = {install_dir = "%[3]s", run_dir = "%[3]s/run", state_dir = "%[3]s/state"}
`, address, probes, dir)
	p := &program{t: t, url: "https://" + address, probes: "http://" + probes}
	if p.config, err = config.Parse([]byte(text)); err != nil {
		t.Fatal(err)
	}
	file, kubeconfig := filepath.Join(dir, "config.toml"), filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := credentials(t.Context(), plane.admin, name, "metrics")
	if err != nil {
		t.Fatal(err)
	}
	writeKubeconfig(t, cfg, kubeconfig)
	args := []string{"--config", file, "--kubeconfig", kubeconfig, "--node-name", "metrics"}
	if name == account {
		args = append(args, "--http-address", address, "--probe-address", probes)
	}
	cmd := exec.Command(filepath.Join("../../../build/bin", name), args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kill(cmd); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s logged:\n%s", name, log.String())
		}
	})
	return p
}

func writeKubeconfig(t *testing.T, cfg *rest.Config, path string) {
	t.Helper()
	content := clientcmdapi.NewConfig()
	content.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	content.AuthInfos["u"] = &clientcmdapi.AuthInfo{
		Token: cfg.BearerToken, ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData,
	}
	content.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	content.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*content, path); err != nil {
		t.Fatal(err)
	}
}

// get requests a path from an address of loopback, with a token unless token is empty.
func (p *program) get(url, token, from string) (int, string) {
	p.t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: dialer.DialContext,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the certificate is self-signed
	}}
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(body)
}

func (p *program) wants(status int, what, token string) {
	p.t.Helper()
	if got, body := p.get(p.url+"/metrics", token, "127.0.0.1"); got != status {
		p.t.Errorf("%s: %d, want %d: %.200s", what, got, status, body)
	}
}

// scraper makes a service account with or without the right to read metrics.
func scraper(t *testing.T, name string, may bool) {
	t.Helper()
	admin := clientOf(t, plane.admin)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: system}}
	if _, err := admin.CoreV1().ServiceAccounts(system).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if may {
		bind(t, name+"-reads", "nri-vgpu-metrics-reader", name)
	}
}

func bind(t *testing.T, name, role string, accounts ...string) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
	for _, account := range accounts {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: system})
	}
	bindings := clientOf(t, plane.admin).RbacV1().ClusterRoleBindings()
	if _, err := bindings.Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bindings.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// tokenOf returns a new token of an account.
func tokenOf(t *testing.T, account string) string {
	t.Helper()
	token, err := clientOf(t, plane.admin).CoreV1().ServiceAccounts(system).
		CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

var reviewCount = regexp.MustCompile(`(?m)^apiserver_request_total\{.*resource="tokenreviews".*\} (\d+)$`)

// reviewed returns the number of tokens that the API server has reviewed.
func reviewed(t *testing.T) int {
	t.Helper()
	text, err := clientOf(t, plane.admin).Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, found := range reviewCount.FindAllSubmatch(text, -1) {
		n, err := strconv.Atoi(string(found[1]))
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// TestMetricsNeedAToken checks that with metrics.authentication the API server decides which
// clients read the metrics of agent and patcher. Agent and patcher reject a client without a token.
func TestMetricsNeedAToken(t *testing.T) {
	if err := install(t.Context(), plane.admin, "../../../deploy/metrics-authentication.yaml"); err != nil {
		t.Fatal(err)
	}
	scraper(t, "may", true)
	scraper(t, "may-not", false)
	may, mayNot := tokenOf(t, "may"), tokenOf(t, "may-not")
	agent := startProgram(t, "nri-vgpu")
	patcher := startProgram(t, account)
	for _, p := range []*program{agent, patcher} {
		eventually.Holds(t, 10*time.Second, "the program serves", func() bool { status, _ := p.get(p.probes+"/healthz", "", "127.0.0.1"); return status != 0 })
		p.wants(http.StatusUnauthorized, "no token", "")
		p.wants(http.StatusUnauthorized, "a token of nobody's", "x.y.z")
		p.wants(http.StatusForbidden, "a token without the right", mayNot)
		p.wants(http.StatusOK, "a token with the right", may)
		if status, _ := p.get(p.url+"/readyz", "", "127.0.0.1"); status != http.StatusUnauthorized {
			t.Errorf("/readyz without a token: %d", status)
		}
		if _, body := p.get(strings.Replace(p.url, "https", "http", 1)+"/metrics", may, "127.0.0.1"); strings.Contains(body, "go_goroutines") {
			t.Error("the metrics are served in clear text")
		}
		if status, body := p.get(p.probes+"/healthz", "", "127.0.0.1"); status != http.StatusOK {
			t.Errorf("kubelet gets %d, %s", status, body)
		}
		if status, _ := p.get(p.probes+"/metrics", "", "127.0.0.1"); status != http.StatusNotFound {
			t.Errorf("metrics beside the probes: %d", status)
		}
	}
	t.Run("for root on the node", func(t *testing.T) {
		if seen := doctor.Gather(t.Context(), config.File{Config: agent.config}).Agent; seen.Err != nil || !seen.Synced {
			t.Errorf("vgpuctl doctor sees %+v", seen)
		}
		if info, err := os.Stat(filepath.Join(agent.config.Paths.RunDir, "metrics.sock")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the metrics' socket: %v, %v", info, err)
		}
	})
	t.Run("a bounded number of answers is cached", func(t *testing.T) {
		before := reviewed(t)
		// The metrics are collected twice a second, and concurrent requests share a collection.
		var requests errgroup.Group
		requests.SetLimit(8)
		for range 20 {
			requests.Go(func() error { patcher.wants(http.StatusOK, "again", may); return nil })
		}
		_ = requests.Wait()
		if n := reviewed(t) - before; n != 0 {
			t.Errorf("20 requests with a known token took %d reviews", n)
		}
		for i := range 130 {
			token := tokenOf(t, "may")
			requests.Go(func() error {
				if status, body := patcher.get(patcher.url+"/metrics", token, fmt.Sprintf("127.0.1.%d", 1+i/5)); status != http.StatusOK {
					return fmt.Errorf("token %d: %d, %s", i, status, body)
				}
				return nil
			})
		}
		if err := requests.Wait(); err != nil {
			t.Fatal(err)
		}
		before = reviewed(t)
		patcher.wants(http.StatusOK, "a token that is no longer cached", may)
		if n := reviewed(t) - before; n != 1 {
			t.Errorf("after 130 other tokens, a token took %d reviews", n)
		}
	})
	t.Run("a flood of wrong tokens", func(t *testing.T) {
		before, began := reviewed(t), time.Now()
		late := 0
		for i := range 100 {
			if status, _ := patcher.get(patcher.url+"/metrics", fmt.Sprintf("wrong.%d.x", i), "127.0.0.9"); status == http.StatusTooManyRequests {
				late++
			}
		}
		if n, most := reviewed(t)-before, 11+int(2*time.Since(began).Seconds()); n > most || late == 0 {
			t.Errorf("100 wrong tokens took %d reviews, want at most %d; %d were refused at once", n, most, late)
		}
		if status, body := patcher.get(patcher.url+"/metrics", tokenOf(t, "may"), "127.0.0.10"); status != http.StatusOK {
			t.Errorf("another client meanwhile: %d, %s", status, body)
		}
	})
	t.Run("while the API server hangs", func(t *testing.T) {
		signal(t, plane.api, syscall.SIGSTOP)
		eventually.Holds(t, 10*time.Second, "the API server is stopped", func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", plane.api.Process.Pid))
			return err == nil && strings.Contains(string(stat), ") T ")
		})
		defer signal(t, plane.api, syscall.SIGCONT)
		refusedSoon(t, patcher)
		refusedSoon(t, agent)
	})
	t.Run("while the API server is away", func(t *testing.T) {
		if err := kill(plane.api); err != nil {
			t.Fatal(err)
		}
		refusedSoon(t, patcher)
		refusedSoon(t, agent)
		if err := plane.startAPI(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("without the right to review", func(t *testing.T) {
		if err := clientOf(t, plane.admin).RbacV1().ClusterRoleBindings().Delete(t.Context(), "nri-vgpu-reviews", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually.Holds(t, 10*time.Second, "the right is gone", func() bool {
			status, _ := patcher.get(patcher.url+"/metrics", tokenOf(t, "may"), "127.0.0.11")
			return status == http.StatusServiceUnavailable
		})
	})
}

func signal(t *testing.T, cmd *exec.Cmd, s syscall.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		t.Error(err)
	}
}

// refusedSoon checks that a request fails closed within a second.
func refusedSoon(t *testing.T, p *program) {
	t.Helper()
	const token = "never.seen.before"
	began := time.Now()
	status, body := p.get(p.url+"/metrics", token, "127.0.0.12")
	if took := time.Since(began); status != http.StatusServiceUnavailable || took > time.Second {
		t.Errorf("after %v: %d, %s", took, status, body)
	}
}
