// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	// reader may read the view and list pods. stranger has no rights.
	reader   = "alice"
	stranger = "bob"
)

// workloads starts three pods, and returns the pods. The pod "full" fills its limit of 4 GiB, "idle"
// holds 1 GiB of 8 GiB, and "busy" computes.
func workloads(t *testing.T) []*corev1.Pod {
	t.Helper()
	pods := []*corev1.Pod{
		testbed.Pod("full", testbed.Container("main", testbed.Limits{testbed.Memory: 4096}, "fill", "--max", "16GiB", "--hold", "3600")),
		testbed.Pod("idle", testbed.Container("main", testbed.Limits{testbed.Memory: 8192, testbed.Cores: 30}, "fill", "--max", "1GiB", "--hold", "3600")),
		testbed.Pod("busy", testbed.Container("main", testbed.Limits{testbed.Memory: 12288, testbed.Cores: 60}, "spin", "--kernel-us", "2000", "--duration", "3600")),
	}
	for i, pod := range pods {
		if _, err := bed.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := bed.Delete(context.Background(), pod.Name); err != nil {
				t.Error(err)
			}
		})
		running, err := bed.WaitRunning(t.Context(), pod.Name, patience)
		if err != nil {
			t.Fatal(err)
		}
		if err := bed.WaitHeld(t.Context(), running, 1, patience); err != nil {
			t.Fatal(err)
		}
		pods[i] = running
	}
	return pods
}

// held returns the memory that a pod holds by the oracle, in bytes.
func held(t *testing.T, pod *corev1.Pod) (sum uint64) {
	t.Helper()
	byGPU, err := bed.Held(pod)
	if err != nil {
		t.Fatal(err)
	}
	for bytes := range maps.Values(byGPU) {
		sum += bytes
	}
	return sum
}

// allow lets reader read the view, and list pods in all namespaces.
func allow(t *testing.T) {
	t.Helper()
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: reader}}
	rbac := bed.Client.RbacV1()
	_, err := rbac.RoleBindings(testbed.Namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "nri-vgpu-viewer"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = rbac.RoleBindings(testbed.Namespace).Delete(context.Background(), "reader", metav1.DeleteOptions{})
	})
	_, err = rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = rbac.ClusterRoleBindings().Delete(context.Background(), "reader", metav1.DeleteOptions{})
	})
}

// TestKubectlVgpuWithoutExec checks that a user without pods/exec sees the oracle's numbers through
// the view. A user without rights gets an error that names the missing right.
func TestKubectlVgpuWithoutExec(t *testing.T) {
	pods := workloads(t)
	allow(t)
	for _, pod := range pods {
		eventuallyUsed(t, pod)
	}
	output, err := bed.KubectlVgpu(t.Context(), "--as", stranger, "get", "gpus")
	if err == nil || !strings.Contains(err.Error(), "docs/how-to/view.md") {
		t.Errorf("a user without rights gets %q, %v", output, err)
	}
	// This command needs the right to run a command in the agent's pod.
	if output, err := bed.KubectlVgpu(t.Context(), "--as", reader, "doctor"); err == nil {
		t.Errorf("a user without pods/exec examined the node:\n%s", output)
	}
	processes, err := bed.KubectlVgpu(t.Context(), "--as", reader, "ps", "-A", "-o", "json")
	if err != nil || !strings.Contains(processes, `"pid"`) || strings.Contains(processes, "--hold") {
		t.Errorf("the processes contain command lines, or no process is listed: %s, %v", processes, err)
	}
}

// eventuallyUsed waits until kubectl vgpu reports, for a reader, the memory that a pod holds by the
// oracle.
func eventuallyUsed(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	want := held(t, pod)
	eventually.Succeeds(t, patience, "kubectl vgpu reports what pod "+pod.Name+" holds", func(ctx context.Context) error {
		output, err := bed.KubectlVgpu(ctx, "--as", reader, "get", "pods", "-A", "-o", "json")
		if err != nil {
			return err
		}
		var entries []show.PodEntry
		if err := json.Unmarshal([]byte(output), &entries); err != nil {
			return err
		}
		for _, e := range entries {
			if e.Pod == pod.Name && len(e.GPUs) == 1 && e.GPUs[0].MemoryUsedBytes != nil && *e.GPUs[0].MemoryUsedBytes == want {
				return nil
			}
		}
		return fmt.Errorf("want %d bytes: %s", want, output)
	})
}

// TestTokensAreRequired checks that neither the view nor the agents answer clients without the right
// token. Some clients are on the network; other clients connect through the API server.
func TestTokensAreRequired(t *testing.T) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	agent := "https://" + net.JoinHostPort(bed.Cluster.Address, "9398") + agentapi.OverviewPath
	for name, c := range map[string]struct {
		token string
		want  int
	}{
		"no token":            {"", http.StatusUnauthorized},
		"no token of a user":  {"nonsense", http.StatusUnauthorized},
		"a token of a tenant": {tokenOf(t, metav1.NamespaceDefault, "default", agentapi.OverviewAudience), http.StatusForbidden},
		"a viewer's token":    {tokenOf(t, testbed.Namespace, "nri-vgpu-viewer", agentapi.OverviewAudience), http.StatusForbidden},
		"another audience":    {tokenOf(t, testbed.Namespace, "nri-vgpu-view"), http.StatusUnauthorized},
		"the view's token":    {tokenOf(t, testbed.Namespace, "nri-vgpu-view", agentapi.OverviewAudience), http.StatusOK},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, agent, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.token != "" {
			request.Header.Set("Authorization", "Bearer "+c.token)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != c.want {
			t.Errorf("%s: the agent answers %s: %s", name, answer.Status, body)
		}
	}
	_, err := bed.Client.CoreV1().RESTClient().Get().Namespace(testbed.Namespace).Resource("services").
		Name("https:nri-vgpu-view:https").SubResource("proxy").Suffix(agentapi.FleetPath).DoRaw(t.Context())
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("without a token the view answers %v", err)
	}
}

// tokenOf returns a token of a service account for the audiences, by default the API server's.
func tokenOf(t *testing.T, namespace, account string, audiences ...string) string {
	t.Helper()
	token, err := bed.Client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}
