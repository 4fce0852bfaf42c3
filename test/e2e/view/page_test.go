// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bufio"
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/terminal"
)

// serve runs kubectl vgpu view for reader until the test ends, and returns the page's address.
func serve(t *testing.T) string {
	t.Helper()
	command := exec.Command(bed.Kubectl(), "vgpu", "--as", reader, "view")
	command.Env, command.Stderr = bed.Plugins(), os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGINT)
		if err := command.Wait(); err != nil {
			t.Errorf("kubectl vgpu view ended with %v", err)
		}
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(address)
}

// open opens the page in a browser that ends with the test.
func open(t *testing.T, address string) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("/usr/bin/"+browser), chromedp.NoSandbox)
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, patience)
	t.Cleanup(cancel)
	do(ctx, t, chromedp.Navigate(address), chromedp.WaitVisible(`#containers tbody tr`))
	return ctx
}

func do(ctx context.Context, t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// evaluate returns the value of an expression in the page.
func evaluate[T any](ctx context.Context, t *testing.T, expression string) T {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestPage checks that the page, in a browser, shows the oracle's numbers for containers and GPUs.
// The page fits a phone and a desktop, in light and dark.
func TestPage(t *testing.T) {
	pods := workloads(t)
	allow(t)
	ctx := open(t, serve(t))
	var sum uint64
	for _, pod := range pods {
		sum += checkRow(ctx, t, pod)
	}
	shown := `[...document.querySelectorAll("[data-gpu]")].reduce((n, e) => n + Number(e.dataset.used), 0)`
	if got := evaluate[float64](ctx, t, shown); uint64(got) != sum {
		t.Errorf("the page shows %.0f used bytes of all GPUs, and the oracle %d", got, sum)
	}
	checkTexts(ctx, t, pods[0])
	checkLook(ctx, t)
	do(ctx, t, chromedp.SendKeys("#filter", "idle"))
	if rows := evaluate[[]string](ctx, t, `[...document.querySelectorAll("#containers tbody tr")].map((r) => r.dataset.container)`); len(rows) != 1 || rows[0] != "default/idle/main" {
		t.Errorf("the filter shows %v", rows)
	}
	if errors := evaluate[string](ctx, t, `document.getElementById("errors").innerText`); errors != "" {
		t.Errorf("the page shows errors: %s", errors)
	}
	pictureOfTop(ctx, t)
}

// checkTexts checks that the page shows memory and time in the form of kubectl vgpu. The pod has filled
// its limit.
func checkTexts(ctx context.Context, t *testing.T, full *corev1.Pod) {
	t.Helper()
	bytes := held(t, full)
	for place, want := range map[string]string{
		"full/main Memory used": "^" + show.MemoryOfLimit(&bytes, 4<<30) + "$",
		"full/main GPU time":    `^\d+\.\d %$`,
		"busy/main GPU time":    `^\d+\.\d/60 %$`,
	} {
		container, label, _ := strings.Cut(place, " ")
		cell := fmt.Sprintf(`document.querySelector('[data-container="default/%s"] [data-label="%s"]')?.innerText ?? ""`, container, label)
		if got := evaluate[string](ctx, t, cell); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("the page shows %q as %s, want %s", got, place, want)
		}
	}
}

// checkLook checks that the page fits a phone and a desktop, in light and dark.
func checkLook(ctx context.Context, t *testing.T) {
	t.Helper()
	grounds := map[string]bool{}
	const phone, desktop = 375, 1280 // pixels
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{phone, desktop} {
			media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
			if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
				t.Fatal(err)
			}
			do(ctx, t, chromedp.EmulateViewport(width, 800))
			if wide := evaluate[int64](ctx, t, `document.documentElement.scrollWidth`); wide > width {
				t.Errorf("%s: the page is %d pixels wide on a screen of %d", scheme, wide, width)
			}
			if width == desktop {
				picture(ctx, t, fmt.Sprintf("view-%s-%d.png", scheme, width))
			}
		}
		grounds[evaluate[string](ctx, t, `getComputedStyle(document.body).backgroundColor`)] = true
	}
	if len(grounds) != 2 {
		t.Errorf("light and dark have the same ground: %v", grounds)
	}
}

// checkRow waits until the page shows the memory that a pod holds by the oracle, and returns the
// bytes.
func checkRow(ctx context.Context, t *testing.T, pod *corev1.Pod) uint64 {
	t.Helper()
	want := held(t, pod)
	row := fmt.Sprintf(`document.querySelector('[data-container="%s/%s/main"]')?.dataset.used ?? ""`, pod.Namespace, pod.Name)
	eventually.Succeeds(t, patience, "the page shows what pod "+pod.Name+" holds", func(context.Context) error {
		if shown := evaluate[string](ctx, t, row); shown != strconv.FormatUint(want, 10) {
			return fmt.Errorf("the page shows %q bytes, and the oracle %d", shown, want)
		}
		return nil
	})
	return want
}

// picture writes a picture of the page to $VIEW_PICTURES, if set. "make pictures" sets the variable.
func picture(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	dir := os.Getenv("VIEW_PICTURES")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/"+name, png, 0o644); err != nil {
		t.Error(err)
	}
}

// pictureOfTop writes a picture of kubectl vgpu top on a terminal to $VIEW_PICTURES, if set.
func pictureOfTop(ctx context.Context, t *testing.T) {
	t.Helper()
	if os.Getenv("VIEW_PICTURES") == "" {
		return
	}
	const columns, rows = 130, 9
	screen := terminal.Start(t, columns, rows, bed.Plugins(), bed.Kubectl()+" vgpu top")
	text := terminal.Await(t, screen, patience, "the containers and their time", func(text string) bool {
		return strings.Contains(text, "default/busy/main") && strings.Contains(text, "/60 %")
	})
	const style = "display: inline-block; margin: 0; padding: 1em; background: #1c2128; color: #d6dde6; font: 14px monospace"
	page := fmt.Sprintf("<body style='margin: 0'><pre style='%s'>%s</pre>", style, html.EscapeString(text))
	do(ctx, t, chromedp.Navigate("data:text/html;charset=utf-8,"+url.PathEscape(page)))
	size := evaluate[[]int64](ctx, t, `(({offsetWidth, offsetHeight}) => [offsetWidth, offsetHeight])(document.querySelector("pre"))`)
	do(ctx, t, chromedp.EmulateViewport(size[0], size[1]))
	picture(ctx, t, "top.png")
}

// TestPageIsServedToThisComputerOnly checks that kubectl vgpu view forwards nothing but the page:
// neither other paths of the API server, nor requests under a foreign name.
func TestPageIsServedToThisComputerOnly(t *testing.T) {
	allow(t)
	address := serve(t)
	base := strings.TrimSuffix(address, agentapi.ViewPath)
	for _, c := range []struct {
		path, host string
		want       int
	}{
		{agentapi.ViewPath, "", http.StatusOK},
		{agentapi.FleetPath, "", http.StatusOK},
		{agentapi.FleetPath, "evil.example", http.StatusForbidden},
		{"/api/v1/pods", "", http.StatusNotFound},
		{"/view/../../../../pods", "", http.StatusNotFound},
		{"/view/%2e%2e/%2e%2e/pods", "", http.StatusNotFound},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.host != "" {
			request.Host = c.host
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != c.want {
			t.Errorf("%s of %q: %s: %.200s", c.path, c.host, answer.Status, body)
		}
	}
}
