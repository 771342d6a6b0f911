package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// produce sends each message once, with the arguments and lines of cpp_client.py: at most --threads are in flight, and
// with --rate so many are sent a second. Each thread waits --pace-ms between two.
func produce(topic string, arguments []string) {
	flags := flag.NewFlagSet("produce", flag.ExitOnError)
	group := flags.String("group", "", "")
	count := flags.Int64("count", 0, "")
	prefix := flags.String("prefix", "go", "")
	threads := flags.Int("threads", 1, "")
	perSecond := flags.Float64("rate", 0, "")
	paceMs := flags.Int("pace-ms", 0, "")
	check(flags.Parse(arguments))
	plain, err := rocketmq.NewProducer(
		producer.WithNsResolver(resolver()),
		producer.WithGroupName(*group),
		producer.WithInstanceName(strconv.Itoa(os.Getpid())),
		producer.WithRetry(2),
	)
	check(err)
	check(plain.Start())
	say("ready", nil)
	var next atomic.Int64
	var sending sync.WaitGroup
	begun := time.Now()
	for range *threads {
		sending.Add(1)
		go func() {
			defer sending.Done()
			for number := next.Add(1) - 1; number < *count; number = next.Add(1) - 1 {
				if *perSecond > 0 {
					time.Sleep(time.Until(begun.Add(time.Duration(float64(number) / *perSecond * float64(time.Second)))))
				}
				sendOnce(plain, topic, fmt.Sprintf("%s-%d", *prefix, number))
				time.Sleep(time.Duration(*paceMs) * time.Millisecond)
			}
		}()
	}
	sending.Wait()
	check(plain.Shutdown())
	say("done", nil)
}

func sendOnce(plain rocketmq.Producer, topic string, key string) {
	message := primitive.NewMessage(topic, []byte(key)).WithKeys([]string{key})
	started := now()
	result, err := plain.SendSync(context.Background(), message)
	if err != nil {
		say("send", fields{"key": key, "started": started, "ended": now(), "error": err.Error()})
		return
	}
	say("send", fields{"key": key, "started": started, "ended": now(), "msg_id": result.MsgID,
		"queue_id": result.MessageQueue.QueueId, "queue_offset": result.QueueOffset, "status": int(result.Status)})
}
